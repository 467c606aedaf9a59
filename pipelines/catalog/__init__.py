"""pipelines/catalog."""
