"""server/backends."""
