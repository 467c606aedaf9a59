"""Every colour of the world. Objects are vivid, landscapes are muted: so each object stands out from every landscape,
and the checker can tell a green tree from the grass it stands on.
"""

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from starters.world.scene import Backdrop, Colour, Ground, Light, Scene, Sky

RGB = tuple[int, int, int]
Tone = Sky | Literal["neon"]  # neon: the night of the neon style

OBJECT: Final[Mapping[Colour, RGB]] = {
    "red": (226, 52, 50),
    "orange": (255, 136, 26),
    "yellow": (255, 217, 40),
    "green": (28, 158, 72),
    "blue": (34, 87, 224),
    "purple": (134, 54, 209),
    "pink": (255, 108, 180),
    "white": (255, 255, 255),
    "black": (26, 26, 32),
    "brown": (124, 74, 36),
}
SHADE: Final[Mapping[Colour, RGB]] = {
    "red": (184, 34, 42),
    "orange": (232, 108, 8),
    "yellow": (242, 186, 10),
    "green": (20, 122, 56),
    "blue": (24, 62, 178),
    "purple": (102, 36, 168),
    "pink": (236, 76, 152),
    "white": (222, 228, 236),
    "black": (50, 50, 54),
    "brown": (92, 52, 24),
}

# From the top of the image down to the horizon.
SKY: Final[Mapping[Tone, tuple[RGB, RGB, RGB]]] = {
    "day": ((110, 190, 238), (150, 212, 244), (206, 236, 250)),
    "sunset": ((124, 88, 148), (226, 122, 122), (255, 200, 146)),
    "night": ((22, 30, 76), (38, 50, 106), (66, 82, 146)),
    "overcast": ((126, 137, 148), (148, 158, 168), (172, 181, 189)),
    "neon": ((22, 12, 52), (38, 18, 78), (78, 30, 112)),
}
GROUND: Final[Mapping[Tone, Mapping[Ground, RGB]]] = {
    "day": {"grass": (164, 208, 106), "sea": (56, 160, 190), "desert": (240, 208, 148), "snow": (214, 229, 243)},
    "sunset": {"grass": (166, 164, 88), "sea": (84, 104, 156), "desert": (230, 164, 108), "snow": (240, 214, 218)},
    "night": {"grass": (40, 84, 72), "sea": (24, 66, 116), "desert": (124, 106, 120), "snow": (140, 158, 206)},
    "overcast": {"grass": (130, 162, 112), "sea": (82, 128, 148), "desert": (208, 184, 142), "snow": (206, 215, 224)},
    "neon": {"grass": (12, 62, 50), "sea": (10, 48, 108), "desert": (104, 44, 92), "snow": (100, 106, 172)},
}
BACKDROP: Final[Mapping[Tone, Mapping[Backdrop, RGB]]] = {
    "day": {"mountains": (124, 146, 176), "hills": (118, 172, 134), "city": (94, 104, 140), "clouds": (238, 247, 252)},
    "sunset": {"mountains": (128, 82, 126), "hills": (150, 108, 92), "city": (86, 58, 104), "clouds": (255, 212, 204)},
    "night": {"mountains": (88, 86, 120), "hills": (36, 66, 88), "city": (28, 20, 64), "clouds": (116, 126, 178)},
    "overcast": {
        "mountains": (90, 110, 128),
        "hills": (100, 126, 106),
        "city": (80, 74, 92),
        "clouds": (230, 233, 236),
    },
    "neon": {"mountains": (38, 42, 128), "hills": (16, 60, 84), "city": (20, 8, 40), "clouds": (112, 62, 162)},
}
LIGHT: Final[Mapping[Tone, Mapping[Light, RGB]]] = {
    "day": {"sun": (255, 232, 120)},
    "sunset": {"sun": (255, 238, 160), "moon": (248, 240, 226)},
    "night": {"moon": (246, 240, 214)},
    "overcast": {},
    "neon": {"moon": (246, 240, 214)},
}
NEARER: Final[Mapping[Ground, tuple[float, float]]] = {  # how much darker the ground is, the nearer it is
    "grass": (0.1, 0.2),
    "sea": (0.12, 0.24),
    "desert": (0.05, 0.1),
    "snow": (0.05, 0.1),
}
GLOW: Final[Mapping[Ground, RGB]] = {  # the neon line along the horizon
    "grass": (120, 255, 200),
    "sea": (70, 200, 255),
    "desert": (255, 150, 90),
    "snow": (220, 226, 255),
}

INK: Final[RGB] = (36, 40, 84)
SLATE: Final[RGB] = (74, 82, 98)
CREAM: Final[RGB] = (250, 242, 222)
GLASS: Final[RGB] = (255, 240, 186)
WOOD: Final[RGB] = (142, 116, 100)
STEM: Final[RGB] = (96, 142, 92)
ROCK: Final[RGB] = (118, 120, 128)
FLAME: Final[RGB] = (255, 168, 64)
EMBER: Final[RGB] = (255, 232, 150)
STAR: Final[RGB] = (236, 238, 250)
WINDOW: Final[RGB] = (250, 214, 130)


def tone_of(scene: Scene) -> Tone:
    """The row of the tables above for a scene."""
    return "neon" if scene.style == "night-neon" else scene.sky


def cap_of(tone: Tone) -> RGB:
    """The snow on the mountains."""
    return mix(BACKDROP[tone]["mountains"], (255, 255, 255), 0.25 if tone == "neon" else 0.5)


def window_of(tone: Tone) -> RGB:
    """The windows of the city: lit when it is dark."""
    return mix(BACKDROP[tone]["city"], (255, 255, 255), 0.35) if tone in {"day", "overcast"} else WINDOW


def mix(first: RGB, second: RGB, share: float) -> RGB:
    """`share` of the second colour in the first."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def blends_in(colour: Colour, *behind: RGB) -> bool:
    """Whether an object of this colour is hard to see before one of these."""
    lab = to_lab(np.array([OBJECT[colour], *behind], dtype=np.float32))
    return bool(np.linalg.norm(lab[1:] - lab[0], axis=1).min() < 34)


def to_lab(rgb: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Colours of 0 to 255 (last axis: red, green, blue) in CIELAB, where distances are as far as they look."""
    unit = rgb / np.float32(255)
    linear = np.where(unit > 0.04045, ((unit + 0.055) / 1.055) ** 2.4, unit / 12.92)
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]], dtype=np.float32)
    xyz = linear @ matrix.T / np.array([0.9505, 1.0, 1.089], dtype=np.float32)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = f[..., 0], f[..., 1], f[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1).astype(np.float32)
