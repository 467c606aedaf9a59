"""`python -m server` is the `darkroom` command."""

from server.cli import main

main()
