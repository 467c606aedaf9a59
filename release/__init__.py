"""What accompanies a release: bundles for machines without a network, the site of docs/ and the pages of its reference
that the code says, known vulnerabilities of the pinned packages (audit), and tools.txt, the versions of pip-audit,
cyclonedx-bom and mkdocs-material, which have an environment of their own."""
