"""`python -m darkroom` is the `darkroom` command."""

from darkroom import main

main()
