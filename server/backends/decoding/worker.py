"""The decoder process: reads hostile files one after another, within limits that the kernel enforces.

Run as `python -m server.backends.decoding.worker FD`. It imports Pillow and little else, so that it starts in a tenth
of a second. It may be killed at any moment: it keeps nothing.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Literal

from PIL import Image

from pipelines.protocol.finished_image import WrongSize, encode_file, to_planned_size
from pipelines.protocol.images import Encoding
from pipelines.protocol.pixels import NoTransparency, has_alpha
from pipelines.protocol.processes import leave_signals_to_server
from server.backends.decoding.messages import REQUEST, ImageError, Json, answer
from server.backends.decoding.pixels import DecodedImage, TooMuchMemory, decode_image, decode_mask

CPU_LIMIT_S = 20  # several times what the slowest image of 64 megapixels takes
FINISH_CPU_LIMIT_S = 60  # a 4K image of noise as lossless WebP takes 13 s
SMALL_BYTES = 64_000_000  # estimated; an image that takes more is large, and large ones are decoded one at a time
LARGE_BYTES = 410_000_000
SLACK_BYTES = 32_000_000  # between an estimate and its limit
NICENESS = 5  # the server and its workers come first
PR_SET_PDEATHSIG, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = 1, -1, -3
LIBC = ctypes.CDLL(None)
KEPT_BYTES, KEPT_BLOCK_BYTES = 32 * 1024**2, 8 * 1024**2


def serve(stream: BinaryIO, connection: socket.socket) -> None:
    """Answer requests until the server has closed the connection."""
    base_bytes = _address_space_bytes()
    while len(header := stream.read(REQUEST.size)) == REQUEST.size:
        task_bytes, size_bytes = REQUEST.unpack(header)
        task = json.loads(stream.read(task_bytes))
        limit_s = FINISH_CPU_LIMIT_S if "finish" in task else CPU_LIMIT_S
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + limit_s)
        _limit(resource.RLIMIT_AS, base_bytes + size_bytes + SMALL_BYTES + SLACK_BYTES)
        if task["large"]:
            _limit(resource.RLIMIT_AS, base_bytes + LARGE_BYTES + SLACK_BYTES)
        connection.sendall(answer(_answer(task, stream.read(size_bytes))))
        if task["large"]:
            LIBC.malloc_trim(0)


def _answer(task: Json, data: bytes) -> Json:
    """Decode a file, and return the outcome. After it, nothing of the image is left in memory."""
    try:
        decoded = _decode(task, data)
        written = _finish(decoded.image, task["finish"]) if "finish" in task else None
    except (WrongSize, NoTransparency) as error:
        return {"error": str(error), "code": "invalid_image_file"}
    except ImageError as error:
        return {"error": str(error)[:500], "code": error.code}
    except (TooMuchMemory, MemoryError) as error:
        return {"error": _too_much_memory(error), "code": "image_too_large"} if task["large"] else {"large": True}
    except Exception as error:  # Pillow raises anything for hostile bytes
        return {"error": f"The image is corrupt: {type(error).__name__}: {error}."[:500], "code": "invalid_image_file"}
    try:
        if written is not None:
            Path(task["path"]).write_bytes(written)
        else:
            _write(decoded.image, Path(task["path"]), "WEBP" if task.get("as_webp") else "PPM")
    except OSError as error:
        return {"failure": f"the pixels could not be written: {error}"}
    return {
        "width_px": decoded.image.width,
        "height_px": decoded.image.height,
        "original_width_px": decoded.original_width_px,
        "original_height_px": decoded.original_height_px,
    }


def _decode(task: Json, data: bytes) -> DecodedImage:
    max_bytes = LARGE_BYTES if task["large"] else SMALL_BYTES + len(data)
    if "max_area_px" in task:
        return decode_image(data, task["max_area_px"], max_bytes, keep_alpha=task.get("keep_alpha", False))
    return decode_mask(data, tuple(task["original"]), tuple(task["target"]), max_bytes)


def _finish(image: Image.Image, wanted: Json) -> bytes:
    """Encode an image that another server drew. A preview may be opaque where the image will not be. Raises WrongSize
    and NoTransparency."""
    encoding = Encoding(**wanted["encoding"])
    if wanted["size"] is not None:
        image = to_planned_size(image, tuple(wanted["size"]))
    elif not has_alpha(image):
        encoding = replace(encoding, background="opaque")
    return encode_file(image, encoding, wanted["metadata"])


def _too_much_memory(error: TooMuchMemory | MemoryError) -> str:
    need = f"{error.needed_bytes / 1e6:.0f} MB" if isinstance(error, TooMuchMemory) else "more memory"
    return (
        f"Decoding the image takes {need}; {LARGE_BYTES / 1e6:.0f} MB are available. Save it as a baseline JPEG or as "
        "PNG, or make it smaller."
    )


def _write(image: Image.Image, path: Path, kind: Literal["PPM", "WEBP"]) -> None:
    """Write PPM or PGM, which Pillow writes without a copy of the pixels; or WebP, for thumbnails. Raises OSError."""
    with path.open("xb") as file:
        image.save(file, kind)


def _limit(kind: int, soft: int) -> None:
    resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _isolate() -> None:
    """Let the process die with the server, be the first to go when memory is short, and return the memory that it
    frees."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # What common images free is kept for the next one. Without these limits glibc keeps what large ones free too.
    LIBC.mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
    LIBC.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    """Run the decoder on the socket of the descriptor that the command line names."""
    # service managers signal the whole process group; the server ends its decoders when it has drained
    leave_signals_to_server()
    _isolate()
    Image.preinit()
    from PIL import WebPImagePlugin  # noqa: F401  # before the limit of memory is measured

    connection = socket.socket(fileno=int(sys.argv[1]))
    serve(connection.makefile("rb"), connection)


if __name__ == "__main__":
    main()
