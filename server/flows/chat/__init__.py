"""server/flows/chat."""
