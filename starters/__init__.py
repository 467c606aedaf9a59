"""The demo checkpoints' networks, tokenizers and world. README.md has their figures, and how they were trained.

    world/                         scenes drawn by a program, and the checker of images
    chat/                          starter-chat: network and tokenizer
    architectures.py, tokens.py    the image starters' networks and tokenizers

A development package: it is neither in the wheel nor in the Docker image, and server/ and pipelines/ never import it;
tests/ and benchmarks/ fill the networks with random weights.
"""
