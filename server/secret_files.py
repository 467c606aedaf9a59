"""The secrets that files of the server's home hold, each in one line."""

import hashlib
import hmac
import os
from pathlib import Path

from server.errors import StartError

EMPTY = (
    "holds no secret, which is a line of ASCII letters. Put it there; if the server made the file, delete it, and the "
    "next start makes a new one."
)


def write_secret(path: Path, secret: str) -> None:
    """Write a secret to a new file that its owner alone can read; no file is left if the disk is full."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        try:
            file.write(f"{secret}\n")
            file.flush()
        except OSError:
            path.unlink()
            raise


def read_secret(path: Path) -> str:
    """Return the secret of a file. Raises StartError if it holds none or can't be read, and FileNotFoundError."""
    try:
        secret = path.read_text("ascii").strip()
    except PermissionError as error:
        raise StartError(f"{path} can't be read: run this as the user that runs the server.") from error
    except UnicodeDecodeError as error:
        raise StartError(f"{path} {EMPTY}") from error
    if not secret:
        raise StartError(f"{path} {EMPTY}")
    return secret


def derive_secret(secret: str, purpose: str) -> str:
    """Derive a secret for one purpose, which tells nothing of those for others. Hexadecimal, of 256 bits."""
    return hmac.digest(secret.encode(), f"darkroom {purpose}".encode(), hashlib.sha256).hex()
