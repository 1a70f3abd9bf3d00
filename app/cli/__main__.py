"""`python -m app.cli`, the same as `snaprag`."""

from app.cli import main

main()
