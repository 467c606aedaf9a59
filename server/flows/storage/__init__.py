"""Whose the storage of images is, and what is swept from it."""
