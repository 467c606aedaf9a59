"""A chat checkpoint's files, and its model in memory."""
