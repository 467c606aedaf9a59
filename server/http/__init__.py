"""server/http."""
