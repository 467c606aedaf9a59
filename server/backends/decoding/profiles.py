"""ICC profiles of colours that a file describes by numbers: PNG's gAMA, cHRM and cICP, and cameras' EXIF. Pure.

Formulas: the XYZ of primaries from their chromaticities, SMPTE RP 177; Bradford's adaptation to D50 and the layout of a
profile, ICC.1:2022; the code points of cICP, ITU-T H.273; the PQ curve, SMPTE ST 2084.
"""

import struct
from collections.abc import Sequence

Vector = tuple[float, float, float]
Chromaticities = Sequence[float]  # x and y of white, red, green and blue, in the order of cHRM

D65 = (0.3127, 0.3290)
SRGB_PRIMARIES = (*D65, 0.64, 0.33, 0.30, 0.60, 0.15, 0.06)
ADOBE_PRIMARIES = (*D65, 0.64, 0.33, 0.21, 0.71, 0.15, 0.06)
CICP_PRIMARIES = {
    1: SRGB_PRIMARIES,
    9: (*D65, 0.708, 0.292, 0.170, 0.797, 0.131, 0.046),  # BT.2020
    11: (0.314, 0.351, 0.680, 0.320, 0.265, 0.690, 0.150, 0.060),  # P3 of cinemas
    12: (*D65, 0.680, 0.320, 0.265, 0.690, 0.150, 0.060),  # Display P3
}
D50: Vector = (0.9642, 1.0, 0.8249)
BRADFORD = ((0.8951, 0.2664, -0.1614), (-0.7502, 1.7135, 0.0367), (0.0389, -0.0685, 1.0296))
ADOBE_GAMMA = 563 / 256
SDR_WHITE_NITS = 203  # ITU-R BT.2408: what is brighter in a PQ image becomes white
PQ_ENTRIES = 4096
NEAR = 0.01  # of a chromaticity
NEAR_GAMMA = 0.05  # by which 1/2.2 stands for sRGB's curve, as in libpng


def adobe_rgb() -> bytes:
    """Return the profile of Adobe RGB (1998), which cameras name in their EXIF without embedding one."""
    return _profile(ADOBE_PRIMARIES, _gamma_curve(ADOBE_GAMMA))


def profile_from_chunks(gamma: float | None, chromaticities: Chromaticities | None) -> bytes | None:
    """Return the profile for gAMA (below 1, as stored) and cHRM. None for sRGB and for impossible values."""
    primaries = tuple(chromaticities or SRGB_PRIMARIES)
    if gamma is not None and not 0.1 <= gamma <= 10:
        return None
    is_srgb_curve = gamma is None or abs(gamma * 2.2 - 1) <= NEAR_GAMMA
    if is_srgb_curve and max(abs(a - b) for a, b in zip(primaries, SRGB_PRIMARIES, strict=True)) <= NEAR:
        return None
    return _profile_or_none(primaries, _srgb_curve() if gamma is None else _gamma_curve(1 / gamma))


def profile_from_cicp(chunk: bytes) -> bytes | None:
    """Return the profile for a cICP chunk of RGB in its full range. None for code points that are not known here."""
    if len(chunk) != 4 or chunk[2:] != b"\0\1" or chunk[0] not in CICP_PRIMARIES:
        return None
    curves = {
        4: lambda: _gamma_curve(2.2),
        5: lambda: _gamma_curve(2.8),
        8: lambda: _gamma_curve(1),
        13: _srgb_curve,
        16: _pq_curve,
    }
    curve = curves.get(chunk[1])
    return None if curve is None else _profile_or_none(CICP_PRIMARIES[chunk[0]], curve())


def _profile_or_none(primaries: Chromaticities, curve: bytes) -> bytes | None:
    """Return the profile; None for primaries on one line, or without a light."""
    try:
        return _profile(primaries, curve)
    except (ZeroDivisionError, struct.error):
        return None


def _profile(primaries: Chromaticities, curve: bytes) -> bytes:
    """Build the profile of a display with three primaries. Raises ZeroDivisionError, and struct.error for values out of
    range."""
    red, green, blue = _colorants(primaries)
    text = b"mluc" + bytes(4) + struct.pack(">II2s2sII", 1, 12, b"en", b"US", 6, 28) + "RGB".encode("utf-16-be")
    tags = {
        b"desc": text, b"cprt": text, b"wtpt": _xyz(D50),
        b"rXYZ": _xyz(red), b"gXYZ": _xyz(green), b"bXYZ": _xyz(blue),
        b"rTRC": curve, b"gTRC": curve, b"bTRC": curve,
    }  # fmt: skip
    offset = 128 + 4 + 12 * len(tags)
    table, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        table += struct.pack(">4sII", name, offset + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    size, version = 128 + len(table) + len(body), 0x04300000
    header = struct.pack(">I4xI4s4s4s12x4s28x", size, version, b"mntr", b"RGB ", b"XYZ ", b"acsp") + _xyz(D50)[8:]
    return header + bytes(128 - len(header)) + table + body


def _colorants(primaries: Chromaticities) -> tuple[Vector, Vector, Vector]:
    """Return the XYZ of the three primaries at full, adapted to D50. Raises ZeroDivisionError."""
    white, *lights = (_of_xy(*primaries[i : i + 2]) for i in (0, 2, 4, 6))
    scales = _solve(lights, white)
    adapted = [_adapt(_scale(light, by), white) for light, by in zip(lights, scales, strict=True)]
    return adapted[0], adapted[1], adapted[2]


def _adapt(colour: Vector, white: Vector) -> Vector:
    """Return the colour as it looks under D50."""
    cones = (_multiply(BRADFORD, each) for each in (colour, white, D50))
    adapted = [value * there / here for value, here, there in zip(*cones, strict=True)]
    return _solve(
        [(row[0], row[1], row[2]) for row in zip(*BRADFORD, strict=True)], (adapted[0], adapted[1], adapted[2])
    )


def _of_xy(x: float, y: float) -> Vector:
    return x / y, 1.0, (1 - x - y) / y


def _solve(columns: Sequence[Vector], wanted: Vector) -> Vector:
    """Return the share of each column that makes the wanted vector, by Cramer's rule."""
    a, b, c = columns
    whole = _determinant(a, b, c)
    return _determinant(wanted, b, c) / whole, _determinant(a, wanted, c) / whole, _determinant(a, b, wanted) / whole


def _determinant(a: Vector, b: Vector, c: Vector) -> float:
    return a[0] * (b[1] * c[2] - b[2] * c[1]) - b[0] * (a[1] * c[2] - a[2] * c[1]) + c[0] * (a[1] * b[2] - a[2] * b[1])


def _multiply(rows: Sequence[Vector], vector: Vector) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in rows]


def _scale(vector: Vector, by: float) -> Vector:
    return vector[0] * by, vector[1] * by, vector[2] * by


def _xyz(vector: Vector) -> bytes:
    return b"XYZ " + bytes(4) + _encode_fixed_point(*vector)


def _encode_fixed_point(*values: float) -> bytes:
    """Encode numbers of 16 bits before and 16 after the point."""
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))


def _gamma_curve(gamma: float) -> bytes:
    return b"para" + bytes(4) + struct.pack(">H2x", 0) + _encode_fixed_point(gamma)


def _srgb_curve() -> bytes:
    return (
        b"para"
        + bytes(4)
        + struct.pack(">H2x", 3)
        + _encode_fixed_point(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    )


def _pq_curve() -> bytes:
    """Return the PQ curve as far as an ordinary display shows it, sampled."""
    lights = (_pq_nits(i / (PQ_ENTRIES - 1)) / SDR_WHITE_NITS for i in range(PQ_ENTRIES))
    values = [min(65535, round(light * 65535)) for light in lights]
    return b"curv" + bytes(4) + struct.pack(f">I{PQ_ENTRIES}H", PQ_ENTRIES, *values)


def _pq_nits(signal: float) -> float:
    root = signal ** (32 / 2523)
    return 10_000 * float((max(root - 107 / 128, 0) / (2413 / 128 - 2392 / 128 * root)) ** (8192 / 1305))
