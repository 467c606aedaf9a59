"""One step after another: which sequences are computed, the next tokens, and their text."""
