"""server/state."""
