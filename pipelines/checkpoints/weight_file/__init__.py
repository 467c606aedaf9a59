"""One file of weights: its header, and what follows from it."""
