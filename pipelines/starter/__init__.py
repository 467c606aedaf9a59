"""The starter checkpoints. The server never imports this; it runs `python -m pipelines.starter.build`."""
