"""Kolors: its tokenizer is a file of SentencePiece."""

from pipelines.families.generic import Family


class Kolors(Family):
    """Without the library diffusers does not have the classes."""

    classes = ("Kolors*",)
    libraries = ("sentencepiece",)
