"""What ``dspatch demo`` runs: three lossy resumes with real DeepSpeed ranks on CPU, without and with dspatch."""
