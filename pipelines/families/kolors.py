"""Kolors: its tokenizer is a file of SentencePiece."""

from pipelines.families.generic import Family


class Kolors(Family):
    """Hooks of Kolors, whose classes diffusers has only if the library sentencepiece is installed."""

    classes = ("Kolors*",)
    libraries = ("sentencepiece",)
