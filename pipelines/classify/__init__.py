"""pipelines/classify."""
