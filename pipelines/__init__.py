"""Tensors and checkpoints: everything that happens inside a worker process.

`types`, `catalog`, `sizes`, `pixels` and `messages` are the part that `server` may import; none of them imports torch.
"""
