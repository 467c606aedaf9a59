"""What accompanies a release: known vulnerabilities of the pinned packages (audit), and tools.txt, the versions of
pip-audit and cyclonedx-bom, which have an environment of their own."""
