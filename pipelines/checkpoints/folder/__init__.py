"""A checkpoint's folder and files: its parts, what is wrong with them, their versions and sums."""
