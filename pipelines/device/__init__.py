"""pipelines/device."""
