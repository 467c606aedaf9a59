"""Warmup's findings, kept on disk: a checkpoint that has been tried once is not tried again when it is swapped in, or
when the server starts.

A record belongs to exactly the state that was tried: the files (by version and, of small ones, content), the
options, the device, the versions of the libraries and the code here. Anything else is tried anew.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

import pipelines
from pipelines.checkpoints.folder.versions import FileVersion, loaded_files
from pipelines.checkpoints.work.estimate import is_duration
from pipelines.device.software import describe_device, library_versions
from pipelines.images.scheduling.row_limits import Passes
from pipelines.protocol.images import CheckpointSpec, Runtime
from pipelines.protocol.messages import AdapterFit, Capabilities, FailedCheck

CONTENT_BYTES: Final = 2**20  # up to which a file that has no weights counts by its content too
WEIGHTS: Final = (".safetensors", ".gguf")
MOST_RECORDS: Final = 500
Found = TypeVar("Found")
PASSES: Final = ".passes.json"
OURS: Final = re.compile(r"[0-9a-f]+(\.passes)?\.json")


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a record, for people too: JSON."""

    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """Return a digest of all facts."""
        return _digest([json.dumps(self.facts, sort_keys=True).encode()])


def describe(spec: CheckpointSpec, runtime: Runtime, device: torch.device) -> Subject:
    """Describe the subject of capability checks: a checkpoint's files as they are now, its options with the runtime as
    it was loaded, the device and the software. Reads small files; blocks."""
    unnamed = replace(spec, name="", family="", version="", adapters_version="", source="")
    options = asdict(replace(unnamed, runtime=runtime))
    facts = {
        "checkpoint": str(spec.path),
        "options": json.loads(json.dumps(options, default=str)),
        "files": list_files(spec),
        "device": describe_device(device),
        "versions": {**library_versions(), "darkroom": _code()},
    }
    return Subject(facts)


def list_files(spec: CheckpointSpec) -> list[str]:
    """Return a line for each file that is loaded: its name, its version, and a digest of a small one's content.
    Blocks."""
    sources = (*spec.paths, spec.runtime.lora_folder)
    return [line for source in sources if source is not None for line in _lines(source)]


class CheckRecords:
    """The records on disk: one file a record, in a folder that several workers may share. All calls block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, subject: Subject) -> Capabilities | None:
        """Read the capabilities that were found, `unit_s` included. Returns None if there is no record that can be
        read."""
        path = self._path(subject)
        return _read(path, lambda record: _to_capabilities(record["abilities"]), "the checkpoint is tried")

    def write(self, subject: Subject, found: Capabilities) -> None:
        """Write a record, in place of an older one. A checkpoint whose record can't be written is tried anew next
        time."""
        self._replace(self._path(subject), json.dumps({"abilities": asdict(found), **subject.facts}, indent=1))

    def read_passes(self, subject: Subject) -> list[Passes]:
        """Return the recorded times of the checkpoint's forward passes; none without a record that can be read."""
        path = self._path(subject, PASSES)
        return _read(path, lambda record: list(map(_to_passes, record)), "sharing is measured") or []

    def write_passes(self, subject: Subject, passes: Iterable[Passes]) -> None:
        """Write the measured times of the checkpoint's forward passes, in place of an older record."""
        self._replace(self._path(subject, PASSES), json.dumps([asdict(each) for each in passes]))

    def _replace(self, path: Path, text: str) -> None:
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_text(text)
            part.replace(path)
            self._drop_oldest()
        except OSError as error:  # such as a full disk
            with contextlib.suppress(OSError):
                part.unlink()
            print(f"{path} can't be written: {error}", file=sys.stderr, flush=True)

    def _path(self, subject: Subject, suffix: str = ".json") -> Path:
        return self._folder / f"{subject.name}{suffix}"

    def _drop_oldest(self) -> None:
        ours = (file for file in self._folder.glob("*.json") if OURS.fullmatch(file.name))
        written = [(file.stat().st_mtime_ns, file) for file in ours]
        for _, file in sorted(written)[: max(0, len(written) - MOST_RECORDS)]:
            file.unlink(missing_ok=True)


def _read(path: Path, parse: Callable[[Any], Found], otherwise: str) -> Found | None:
    """Return what a record says; None if there is none, or none that can be read."""
    try:
        return parse(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{path} can't be read, so {otherwise} anew: {error}", file=sys.stderr, flush=True)
        return None


def _to_passes(record: dict[str, Any]) -> Passes:
    """From JSON. Raises TypeError and ValueError for anything else than was written."""
    passes = Passes(**{**record, "seconds": tuple(map(float, record["seconds"]))})
    if min(passes.rows, passes.width_px, passes.height_px) < 1 or not all(map(is_duration, passes.seconds)):
        raise ValueError(f"{record} is no measurement")
    return passes


def _to_capabilities(record: dict[str, Any]) -> Capabilities:
    """Build capabilities from JSON, which has lists for tuples. Raises TypeError, KeyError and ValueError for anything
    else than was written: Python's JSON has NaN and Infinity."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
    }
    values["failed_checks"] = tuple(FailedCheck(*each) for each in values["failed_checks"])
    values["adapter_fits"] = tuple(
        AdapterFit(name, kind, layers, of, tuple(left_out))
        for name, kind, layers, of, left_out in values["adapter_fits"]
    )
    found = Capabilities(**values)
    for name in ("unit_s", "negative_prompt_above"):
        if (number := getattr(found, name)) is not None and not math.isfinite(number):
            raise ValueError(f"{name} is {number}")
    return found


def _lines(source: Path) -> Iterator[str]:
    for name, file in loaded_files(source):
        try:
            version = FileVersion.of(file)
            small = version.bytes <= CONTENT_BYTES and file.suffix not in WEIGHTS
            digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16] if small else "-"
        except OSError as error:
            yield f"{name} {error.strerror}"
        else:
            yield f"{name} {' '.join(map(str, version.state))} {digest}"


def _code() -> str:
    """Return a digest of this package's source: a version number does not change with every commit."""
    return _digest(file.read_bytes() for file in sorted(Path(pipelines.__file__).parent.rglob("*.py")))


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]
