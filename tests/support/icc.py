"""Small ICC profiles, written byte by byte, and what a viewer shows of an image with one."""

import io
import itertools
import struct

from PIL import Image, ImageCms

D50 = (0.9642, 1.0, 0.8249)
COLORANTS = {  # red, green and blue in XYZ under D50, and the gamma
    "Display P3": ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407), 2.2),
    "Adobe RGB": ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457), 563 / 256),
    "ProPhoto RGB": ((0.7977, 0.2880, 0.0), (0.1352, 0.7119, 0.0), (0.0313, 0.0001, 0.8249), 1.8),
    "linear": ((0.4360, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7139), 1.0),
}
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def rgb_profile(name: str) -> bytes:
    """One of COLORANTS."""
    *colorants, gamma = COLORANTS[name]
    tags = {f"{letter}XYZ".encode(): _xyz(*xyz) for letter, xyz in zip("rgb", colorants, strict=True)}
    return _profile(b"RGB ", b"mntr", tags | {f"{letter}TRC".encode(): _gamma(gamma) for letter in "rgb"})


def gray_profile(gamma: float) -> bytes:
    return _profile(b"GRAY", b"mntr", {b"kTRC": _gamma(gamma)})


def press_profile() -> bytes:
    """Of a printing press with dull inks and brown black, as a table of 5 steps for each ink."""
    steps = [i / 4 for i in range(5)]
    inks = list(itertools.product(steps, repeat=4))
    shown = bytes(
        round(255 * (low + (0.95 - low) * (1 - ink) * (1 - black)))
        for *colours, black in inks
        for ink, low in zip(colours, (0.15, 0.1, 0.05), strict=True)
    )
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    table = ImageCms.profileToProfile(Image.frombytes("RGB", (len(inks), 1), shown), SRGB, lab, outputMode="LAB")
    assert table is not None
    identity = bytes(range(256))
    levels = bytes((byte + 128) % 256 if i % 3 else byte for i, byte in enumerate(table.tobytes()))
    matrix = struct.pack(">9i", *(65536 if i % 4 == 0 else 0 for i in range(9)))
    lut = b"mft1" + bytes(4) + bytes((4, 3, 5, 0)) + matrix + identity * 4 + levels + identity * 3
    return _profile(b"CMYK", b"prtr", {b"A2B0": lut}, b"Lab ")


def endless_profile(operations: int) -> bytes:
    """Display P3 by a chain of equal matrices, which all lie in one place of the file."""
    matrix = b"matf" + bytes(4) + struct.pack(">HH12f", 3, 3, *(1.0 if i in (0, 4, 8) else 0.0 for i in range(12)))
    place = struct.pack(">II", 16 + 8 * operations, len(matrix))
    chain = b"mpet" + bytes(4) + struct.pack(">HHI", 3, 3, operations) + place * operations + matrix
    profile = _profile(b"RGB ", b"mntr", {b"D2B0": chain, b"A2B0": chain})
    return profile[:8] + b"\x04\x30\0\0" + profile[12:]


def shown(image: Image.Image, profile: bytes) -> Image.Image:
    """What a viewer shows: the whole image in sRGB, by Pillow's own means."""
    converted = ImageCms.profileToProfile(image, ImageCms.ImageCmsProfile(io.BytesIO(profile)), SRGB, outputMode="RGB")
    assert converted is not None
    return converted


def stored(image: Image.Image, profile: bytes) -> Image.Image:
    """An sRGB image's pixels as a file with this RGB profile has them."""
    target = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    converted = ImageCms.profileToProfile(image, SRGB, target, outputMode="RGB")
    assert converted is not None
    converted.info.clear()
    return converted


def _profile(space: bytes, device_class: bytes, tags: dict[bytes, bytes], pcs: bytes = b"XYZ ") -> bytes:
    name = b"test\0"
    tags = {
        b"desc": b"desc" + bytes(4) + struct.pack(">I", len(name)) + name + bytes(78),
        b"cprt": b"text" + bytes(4) + b"none\0", b"wtpt": _xyz(*D50), **tags,
    }  # fmt: skip
    offset = 128 + 4 + 12 * len(tags)
    table, body = struct.pack(">I", len(tags)), b""
    for tag, data in tags.items():
        table += struct.pack(">4sII", tag, offset + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    size = 128 + len(table) + len(body)
    header = struct.pack(">I4xI4s4s4s12x4s28x", size, 0x02200000, device_class, space, pcs, b"acsp") + _xyz(*D50)[8:]
    return header + bytes(128 - len(header)) + table + body


def _xyz(*values: float) -> bytes:
    return b"XYZ " + bytes(4) + struct.pack(">3i", *(round(value * 65536) for value in values))


def _gamma(gamma: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256))
