"""Prompts on their way through the tokenizers and text encoders.

- reading: how much of a prompt the encoders read, by watching their tokenizers
- places: where a prompt stands in what a tokenizer gets
- long_prompts: prompts that are longer than what an encoder reads at once
- cache: embeddings that are kept for all images, tiles and later calls
"""
