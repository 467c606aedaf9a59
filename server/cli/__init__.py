"""server/cli."""
