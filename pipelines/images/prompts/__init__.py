"""Prompts on their way through the tokenizers and text encoders.

- reading: how much of a prompt the encoders read, by watching their tokenizers
- long_prompts: prompts that are longer than an encoder reads at once
- cache: embeddings that are kept for all images, tiles and later calls
"""
