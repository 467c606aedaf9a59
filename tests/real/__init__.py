"""Real weights and tokenizers, which packages of registries carry. Nothing of them is in the repository."""
