"""Outlines as arrays of points, of which everything in an image is made."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]


def points(*corners: tuple[float, float]) -> Points:
    """A polygon by its corners."""
    return np.array(corners, dtype=np.float64)


def rectangle(left: float, bottom: float, right: float, top: float) -> Points:
    """Upright."""
    return points((left, bottom), (right, bottom), (right, top), (left, top))


def ellipse(x: float, y: float, rx: float, ry: float, *, start: float = 0, end: float = 360, count: int = 44) -> Points:
    """A whole ellipse, or a part of it from one angle to another, anticlockwise where y points up."""
    angles = np.radians(np.linspace(start, end, count, endpoint=end - start < 360))
    return np.stack([x + rx * np.cos(angles), y + ry * np.sin(angles)], axis=1)


def petals(x: float, y: float, inner: float, outer: float, count: int) -> Points:
    """A flower seen from above: between two radii, `count` times."""
    angles = np.linspace(0, 2 * math.pi, 14 * count, endpoint=False)
    radius = inner + (outer - inner) * np.abs(np.cos(angles * count / 2)) ** 0.6
    return np.stack([x + radius * np.sin(angles), y + radius * np.cos(angles)], axis=1)


def star(x: float, y: float, inner: float, outer: float, count: int = 5) -> Points:
    """A star with its first ray upwards."""
    angles = np.arange(2 * count) * math.pi / count
    radius = np.where(np.arange(2 * count) % 2 == 0, outer, inner)
    return np.stack([x + radius * np.sin(angles), y + radius * np.cos(angles)], axis=1)


def union(x: float, y: float, circles: tuple[tuple[float, float, float], ...]) -> Points:
    """The outline of circles (x, y, radius) seen from the point x, y; it must lie in their union."""
    angles = np.linspace(0, 2 * math.pi, 96, endpoint=False)
    ray = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    centres = np.array([(cx - x, cy - y) for cx, cy, _ in circles])
    radii = np.array([radius for _, _, radius in circles])
    along = ray @ centres.T
    inside = along**2 - (centres**2).sum(1) + radii**2
    reach = np.where(inside > 0, along + np.sqrt(np.maximum(inside, 0)), 0).max(1)
    outline: Points = ray * reach[:, None] + (x, y)
    return outline


def ribbon(path: Points, widths: npt.NDArray[np.float64] | float) -> Points:
    """A line of some width, as a polygon."""
    ahead = np.gradient(path, axis=0)
    across = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1) / np.linalg.norm(ahead, axis=1, keepdims=True)
    half = np.broadcast_to(np.asarray(widths) / 2, len(path))[:, None]
    return np.concatenate([path + across * half, (path - across * half)[::-1]])


def bezier(*controls: tuple[float, float], count: int = 20) -> Points:
    """A smooth curve from the first control point to the last."""
    t = np.linspace(0, 1, count)[:, None]
    layer: Any = [np.broadcast_to(np.array(control, dtype=np.float64), (count, 2)) for control in controls]
    while len(layer) > 1:
        layer = [a + (b - a) * t for a, b in pairwise(layer)]
    return np.asarray(layer[0], dtype=np.float64)


def round_box(left: float, bottom: float, right: float, top: float, radius: float) -> Points:
    """A rectangle with round corners."""
    corners = (
        (right - radius, top - radius, 0),
        (left + radius, top - radius, 90),
        (left + radius, bottom + radius, 180),
        (right - radius, bottom + radius, 270),
    )
    return np.concatenate([ellipse(x, y, radius, radius, start=a, end=a + 90, count=6) for x, y, a in corners])
