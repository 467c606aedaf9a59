"""The bytes that checkpoints take, and how the memory of machines and devices is divided."""
