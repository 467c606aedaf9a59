"""The starter checkpoints. The server runs `python -m pipelines.starter.build`, and imports `chat.image_tool` alone."""
