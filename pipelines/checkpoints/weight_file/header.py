"""The headers of weight files, safetensors and GGUF: names, shapes, types and sizes of the tensors."""

import io
import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pipelines.checkpoints.errors import BrokenFile

# Not the hidden ones: macOS puts a `._x` beside each file that it copies to another file system
WEIGHT_FILES: Final = "[!.]*.safetensors"
PICKLES: Final = ("[!.]*.bin", "[!.]*.ckpt", "[!.]*.pt", "[!.]*.pth", "[!.]*.pkl")
NO_PICKLES: Final = "a pickle, which can run code, so it is not read: convert it to .safetensors"
MAX_HEADER_BYTES: Final = 100_000_000  # safetensors' own limit
LFS_POINTER: Final = b"version https://git-lfs"
OTHER_CONTENTS: Final = (  # by how the file begins: what is downloaded or renamed in place of weights
    (LFS_POINTER, "a pointer of git-lfs in place of the weights: `git lfs pull` brings them"),
    (rb"\s*<[!?a-zA-Z][a-zA-Z-]", "a web page in place of the weights, such as one to sign in: download it again"),
    (rb"\s*{\s*\"", "a message in place of the weights, such as of a refused download: download it again"),
    (rb"PK\x03\x04|\x80[\x02-\x05][}c\x95\x8a]", "a pickle under another name, which can run code: convert it"),
    (rb"GGUF", "a .gguf file under another name: rename it"),
)
UNFINISHED: Final = ".aria2"  # after the name, of the file that aria2 keeps beside one until it is whole
GGUF_ALIGNMENT: Final = 32  # unless the file says otherwise
# GGUF's types of tensors (ggml.h): name, weights in a block, bytes of a block
GGML_TYPES: Final[Mapping[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1),
    25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
GGUF_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
GGUF_STRING, GGUF_ARRAY = 8, 9
ORIGINAL_SHAPE: Final = "comfy.gguf.orig_shape."  # before a tensor's name, where it is stored in rows of another length


NOT_READ: Final = (  # raised by the content of a file of another kind
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file. `dtype` is as the format names it, such as F16, F8_E4M3 or Q4_K."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int  # in the file
    start: int = 0  # of its data in the file

    @property
    def weights(self) -> int:
        """Return how many weights the tensor has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a weight file. The metadata are text, as trainers write them."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, Any]


def pickles_in(folder: Path) -> list[Path]:
    """Return the files of a folder that are pickles by their names."""
    return [file for pattern in PICKLES for file in sorted(folder.glob(pattern))]


def read_header(file: Path) -> Header:
    """Read the header of a .safetensors or .gguf file. Raises BrokenFile, also if the file is shorter than it says."""
    read = _read_gguf if file.suffix == ".gguf" else _read_safetensors
    if file.with_name(file.name + UNFINISHED).exists():  # it has its full length, and zeros for what is to come
        raise BrokenFile(f"{file}: a download that is not finished, by {file.name}{UNFINISHED} beside it")
    if file.is_fifo():
        raise BrokenFile(f"{file}: a pipe, which nobody can read twice")
    try:
        with file.open("rb") as stream:
            header, expected_bytes = read(stream)
            size_bytes = stream.seek(0, io.SEEK_END)
    except NOT_READ as error:
        raise BrokenFile(f"{file}: {_other_content(file)}") from error
    if size_bytes < expected_bytes:
        raise BrokenFile(f"{file}: truncated, it has {size_bytes:,} of {expected_bytes:,} bytes")
    if size_bytes > expected_bytes and file.suffix != ".gguf":  # whose end may be padded
        message = f"{size_bytes - expected_bytes:,} bytes too many after its {expected_bytes:,}: copy it again"
        raise BrokenFile(f"{file}: {message}")
    return header


def _other_content(file: Path) -> str:
    """Describe a file that no header can be read from."""
    if not file.exists():
        return "a link to a file that is missing, so the download or the copy is not whole"
    try:
        with file.open("rb") as stream:
            begin = stream.read(100)
    except OSError as error:  # such as a folder, or a file of another user
        return f"it can't be read: {error.strerror}"
    if not begin:
        return "empty, so the download or the copy is not whole"
    kind = file.suffix[1:]
    others = OTHER_CONTENTS[:-1] if kind == "gguf" else OTHER_CONTENTS
    found = (text for start, text in others if re.match(start, begin))
    return next(found, f"not a {kind} file, or a broken one")


def _read_safetensors(stream: BinaryIO) -> tuple[Header, int]:
    """Read the header and the length in bytes that the file must have. The format begins with an 8-byte little-endian
    length and a JSON header."""
    (length,) = struct.unpack("<Q", stream.read(8))
    if length > MAX_HEADER_BYTES:
        raise ValueError(length)
    listed = json.loads(stream.read(length))
    metadata = listed.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise TypeError(metadata)
    tensors = []
    for name, entry in listed.items():
        begin, end = entry["data_offsets"]
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        if not isinstance(dtype, str) or not 0 <= begin <= end or not all(_is_size(side) for side in shape):
            raise ValueError(entry)
        tensors.append(Tensor(name, dtype, shape, end - begin, 8 + length + begin))
    return Header(tuple(tensors), metadata), max((each.start + each.bytes for each in tensors), default=8 + length)


def _is_size(side: Any) -> bool:
    return isinstance(side, int) and side >= 0


def read_data(file: Path, tensor: Tensor) -> bytes:
    """Read a small tensor's content, of a .safetensors file. Raises BrokenFile."""
    try:
        with file.open("rb") as stream:
            stream.seek(tensor.start)
            return stream.read(tensor.bytes)
    except OSError as error:
        raise BrokenFile(f"{file}: {error.strerror}") from error


def read_numbers(file: Path, tensor: Tensor) -> tuple[float, ...]:
    """Read a small tensor's values; none of a type that is no plain floating point. Raises BrokenFile."""
    data = read_data(file, tensor)
    if tensor.dtype == "BF16":  # the upper half of a float
        data = b"".join(b"\0\0" + data[place : place + 2] for place in range(0, len(data), 2))
    code = {"F64": "d", "F32": "f", "BF16": "f", "F16": "e"}.get(tensor.dtype)
    if code is None or len(data) != struct.calcsize(f"<{tensor.weights}{code}"):
        return ()
    return struct.unpack(f"<{tensor.weights}{code}", data)


def _read_gguf(stream: BinaryIO) -> tuple[Header, int]:
    """Read a GGUF header, versions 2 and 3: counts, key-value pairs, one record a tensor (dimensions fastest first),
    then aligned data. Returns the length in bytes that the file must have, too."""
    magic, version, tensor_count, pair_count = struct.unpack("<4sIQQ", stream.read(24))
    if magic != b"GGUF" or version not in {2, 3}:
        raise ValueError(magic)
    metadata = {}
    for _ in range(pair_count):
        key = _string(stream)
        metadata[key] = _value(stream, _scalar(stream, "I"))
    tensors, end = [], 0
    for _ in range(tensor_count):
        name, dimensions = _string(stream), _scalar(stream, "I")
        shape = struct.unpack(f"<{dimensions}Q", stream.read(8 * dimensions))
        kind, offset = struct.unpack("<IQ", stream.read(12))
        dtype, block, block_bytes = GGML_TYPES.get(kind, (f"type {kind}", 1, 0))
        shape = tuple(metadata.get(f"{ORIGINAL_SHAPE}{name}", reversed(shape)))
        tensors.append(Tensor(name, dtype, shape, math.prod(shape) // block * block_bytes))
        end = max(end, offset + tensors[-1].bytes)
    alignment = metadata.get("general.alignment", GGUF_ALIGNMENT)
    start = -(-stream.tell() // alignment) * alignment
    return Header(tuple(tensors), metadata), start + end


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == GGUF_STRING:
        return _string(stream)
    if kind == GGUF_ARRAY:
        item_kind, count = struct.unpack("<IQ", stream.read(12))
        return [_value(stream, item_kind) for _ in range(count)]
    return _scalar(stream, GGUF_SCALARS[kind])


def _scalar(stream: BinaryIO, code: str) -> Any:
    (value,) = struct.unpack(f"<{code}", stream.read(struct.calcsize(f"<{code}")))
    return value


def _string(stream: BinaryIO) -> str:
    length = _scalar(stream, "Q")
    if length > MAX_HEADER_BYTES:
        raise ValueError(length)
    return stream.read(length).decode()
