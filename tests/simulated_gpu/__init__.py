"""CUDA without a GPU: a device in the host's memory that breaks where CUDA's rules are broken. See README.md."""
