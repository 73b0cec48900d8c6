"""Request, file facts and live facts in; findings, the same verdict on every rank, and a report out."""
