"""The starter checkpoints. The server runs `python -m starters.build`, and imports `chat.image_tool` alone."""
