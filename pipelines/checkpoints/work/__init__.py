"""How an image is drawn in passes and tiles, how much work that is, and who shares weights."""
