"""The command line. One file per command, each with ``add_parser(subparsers)`` and ``run(args) -> exit code``."""
