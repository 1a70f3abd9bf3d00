"""Faults, tried for real, on a service and a server of their own: `python -m evals.faults --help`."""
