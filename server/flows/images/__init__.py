"""server/flows/images."""
