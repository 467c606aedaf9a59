"""server/schemas."""
