"""What all workers of a test run share: a folder, and what the first of them makes in it for all."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import certifi

VARIABLE = "SHARED_BY_TESTS"  # names the folder, which lives as long as the run
FIRST = "first.pem"


def shared_folder() -> Path | None:
    """Return the folder of this test run, or None outside of one, as in a benchmark."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def trust_one_certificate() -> None:
    """Let new clients of httpx read one certificate. Those of tests need none, and to read all of certifi's takes each
    a twentieth of a second."""
    certificates = make_once("certificates", _write_first_certificate) / FIRST
    certifi.where = lambda: str(certificates)


def _write_first_certificate(folder: Path) -> None:
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    (folder / FIRST).write_text(first + end)


def make_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder `name`, which the first caller of all workers fills by `make`. Tests only read it."""
    shared = Path(os.environ[VARIABLE])
    folder, part = shared / name, shared / f"{name}.part"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(part, ignore_errors=True)  # of a worker that failed
            part.mkdir()
            make(part)
            part.rename(folder)
    return folder
