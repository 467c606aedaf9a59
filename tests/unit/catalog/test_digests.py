"""Sums of weights: each file is read once, and again when it has changed."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from pipelines.checkpoints.folder.sums import Digests


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"one")
    return file


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_is_read_once(weights: Path, tmp_path: Path) -> None:
    memory = tmp_path / "digests.json"
    assert Digests(memory).of_files([weights]) == [sha256(b"one")]
    known = json.loads(memory.read_text())
    known[str(weights)][-1] = "remembered"
    memory.write_text(json.dumps(known))
    assert Digests(memory).of_files([weights]) == ["remembered"]


def test_a_change_that_keeps_size_and_time_is_seen(weights: Path, tmp_path: Path) -> None:
    digests = Digests(tmp_path / "digests.json")
    digests.of_files([weights])
    before = weights.stat()
    while weights.stat().st_ctime_ns == before.st_ctime_ns:  # its clock has ticks of milliseconds
        weights.write_bytes(b"two")
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digests.of_files([weights]) == [sha256(b"two")]


def test_files_that_are_gone_are_forgotten(weights: Path, tmp_path: Path) -> None:
    digests = Digests(tmp_path / "digests.json")
    digests.of_files([weights])
    moved = weights.rename(tmp_path / "moved.safetensors")
    digests.of_files([moved])
    assert list(json.loads((tmp_path / "digests.json").read_text())) == [str(moved)]


def test_sums_that_cant_be_read_or_written_are_reckoned_anew(weights: Path, tmp_path: Path) -> None:
    memory = tmp_path / "digests.json"
    memory.write_text("{")
    assert Digests(memory).of_files([weights]) == [sha256(b"one")]
    assert Digests(tmp_path / "absent" / "digests.json").of_files([weights]) == [sha256(b"one")]
