"""pipelines/images."""
