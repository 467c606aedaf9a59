"""Measurements. Each prints what it measured and how to read it."""
