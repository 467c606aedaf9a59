"""`python -m server` is the `darkroom` command."""

from server.cli.app import main

main()
