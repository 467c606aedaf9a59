"""pipelines/protocol."""
