"""The forward pass of texts that share a batch: keys and values in pages, attention, CUDA graphs."""
