"""The words for the world's parts. The first of each is the plainest; every one of them is true of the image."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from starters.world.scene import Backdrop, Colour, Ground, Kind, Light, Measure, Place, Sky, Style

Words = tuple[str, ...]

NOUNS: Final[Mapping[Kind, Words]] = {
    "house": ("house", "cottage", "home", "cabin"),
    "tree": ("tree", "leafy tree"),
    "boat": ("boat", "sailboat", "sailing boat", "ship"),
    "car": ("car", "automobile", "motor car"),
    "flower": ("flower", "blossom", "bloom"),
    "cat": ("cat", "kitty", "kitten", "sitting cat"),
    "rocket": ("rocket", "rocket ship", "spaceship", "space rocket"),
    "lighthouse": ("lighthouse", "light tower"),
    "circle": ("circle", "disc", "round shape"),
    "square": ("square", "square shape"),
    "triangle": ("triangle", "triangular shape"),
    "star": ("star", "five-pointed star", "star shape"),
    "heart": ("heart", "heart shape", "love heart"),
}
COLOUR_PHRASES: Final[Mapping[Colour, Words]] = {
    "red": ("red", "bright red", "scarlet"),
    "orange": ("orange", "bright orange"),
    "yellow": ("yellow", "bright yellow"),
    "green": ("green", "emerald green"),
    "blue": ("blue", "royal blue"),
    "purple": ("purple", "violet"),
    "pink": ("pink", "hot pink"),
    "white": ("white", "snow-white", "pure white"),
    "black": ("black", "jet-black"),
    "brown": ("brown", "chocolate brown"),
}
SIZE_PHRASES: Final[Mapping[Measure, Words]] = {
    "small": ("small", "little", "tiny"),
    "large": ("large", "big", "huge"),
}
PLACE_PHRASES: Final[Mapping[Place, Words]] = {
    "left": ("on the left", "to the left", "at the left", "on the left side", "on the left-hand side"),
    "centre": ("in the centre", "in the middle", "in the center", "at the centre"),
    "right": ("on the right", "to the right", "at the right", "on the right side", "on the right-hand side"),
}
MOVE_TARGETS: Final[Mapping[Place, Words]] = {
    "left": ("to the left side", "over to the left", "left"),
    "centre": ("to the centre", "to the middle", "into the middle"),
    "right": ("to the right side", "over to the right", "right"),
}
SKY_PHRASES: Final[Mapping[Sky, Words]] = {
    "day": ("by day", "during the day", "in daylight", "in the daytime", "under a blue sky", "on a clear day"),
    "sunset": ("at sunset", "during sunset", "at dusk", "under a sunset sky", "at sundown", "in the evening"),
    "night": ("at night", "by night", "under the stars", "under a starry sky", "in the night", "during the night"),
    "overcast": (
        "under an overcast sky", "on an overcast day", "under a grey sky", "on a grey day", "in gray weather",
    ),
}  # fmt: skip
SKY_NOUNS: Final[Mapping[Sky, Words]] = {
    "day": ("blue sky", "bright daylight", "a clear day", "daytime"),
    "sunset": ("sunset", "a sunset", "evening sky", "dusk"),
    "night": ("night", "a starry night", "starry sky", "night sky"),
    "overcast": ("overcast sky", "a grey sky", "grey overcast", "an overcast day"),
}
GROUND_PHRASES: Final[Mapping[Ground, Words]] = {
    "grass": ("on the grass", "on grass", "in a meadow", "on a lawn", "in a grassy field"),
    "sea": ("at sea", "on the sea", "on the ocean", "in the ocean", "on the water"),
    "desert": ("in the desert", "on the sand", "in a sandy desert", "on desert sand"),
    "snow": ("in the snow", "on snow", "in a snowy field", "on snowy ground", "in a winter landscape"),
}
GROUND_NOUNS: Final[Mapping[Ground, Words]] = {
    "grass": ("the grass", "a meadow", "a green field", "grassland"),
    "sea": ("the sea", "the ocean", "the water", "the waves"),
    "desert": ("the desert", "a desert", "the sand", "sand dunes"),
    "snow": ("the snow", "a snowy field", "a snowy plain", "snow"),
}
BACKDROP_PHRASES: Final[Mapping[Backdrop, Words]] = {
    "mountains": (
        "in front of mountains", "with mountains behind", "mountains in the background", "before a mountain range",
    ),
    "hills": ("in front of hills", "with hills behind", "rolling hills in the background", "before gentle hills"),
    "city": (
        "in front of a city skyline", "a city in the background", "with a skyline behind", "before a city skyline",
    ),
    "clouds": ("with clouds in the sky", "with clouds", "under puffy clouds", "with some clouds above"),
}  # fmt: skip
BACKDROP_NOUNS: Final[Mapping[Backdrop, Words]] = {
    "mountains": ("mountains", "a mountain range"),
    "hills": ("hills", "rolling hills"),
    "city": ("a city skyline", "a skyline", "a city"),
    "clouds": ("clouds", "puffy clouds"),
}
LIGHT_PHRASES: Final[Mapping[Light, Words]] = {
    "sun": ("with the sun in the sky", "with a sun", "with the sun shining", "under the sun"),
    "moon": ("with a moon", "under the moon", "with a crescent moon", "the moon in the sky", "under a crescent moon"),
}  # fmt: skip
LIGHT_NOUNS: Final[Mapping[Light, Words]] = {
    "sun": ("sun", "the sun"),
    "moon": ("moon", "a crescent moon", "the moon"),
}
STYLE_PHRASES: Final[Mapping[Style, Words]] = {
    "flat": ("in a flat style", "flat style", "as a flat poster", "flat vector art"),
    "outlined": ("in an outlined style", "with bold outlines", "outlined style", "drawn with thick outlines"),
    "paper-cut": ("in a paper-cut style", "paper-cut style", "made of cut paper", "as a paper cutout"),
    "night-neon": ("in a neon style", "neon style", "in glowing neon", "in night-neon style"),
}
STYLED_IMAGES: Final[Mapping[Style, Words]] = {
    "flat": ("a flat illustration", "a flat poster", "a flat drawing"),
    "outlined": ("an outlined drawing", "an outlined illustration", "a bold line drawing"),
    "paper-cut": ("a paper-cut picture", "a paper cutout", "paper art"),
    "night-neon": ("a neon picture", "a neon poster", "a glowing neon illustration"),
}


def pick_phrase(rng: np.random.Generator, words: Words) -> str:
    """One of them, the plainest most often."""
    if rng.random() < 0.35:
        return words[0]
    return words[int(rng.integers(len(words)))]


def with_article(phrase: str) -> str:
    """A or an."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def join_list(phrases: list[str]) -> str:
    """One, one and two, one, two and three."""
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
