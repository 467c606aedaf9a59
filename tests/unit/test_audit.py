"""The audit of pinned packages: by a file, and with a clear word where nothing could be asked."""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from release import audit
from release.audit import CONSTRAINTS, AuditFailed, audit_by_file, read_pins

PINS = {"pillow": "11.0.0", "python-multipart": "0.0.20"}


def record(name: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    affected = {"package": {"ecosystem": "PyPI", "name": name}, "ranges": ranges, "versions": more.pop("versions", [])}
    return {"id": "PYSEC-1", "summary": "overflow", "affected": [affected], **more}


def export(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number, each in enumerate(records):
            archive.writestr(f"{number}.json", json.dumps(each))
    return path


@pytest.mark.parametrize(
    ("found", "vulnerable"),
    [
        (record("Pillow", {"introduced": "0"}, {"fixed": "11.0.1"}), True),
        (record("Pillow", {"introduced": "0"}, {"fixed": "11.0.0"}), False),
        (record("pillow", {"introduced": "0"}, {"last_affected": "11.0.0"}), True),
        (record("pillow", {"introduced": "0"}, {"last_affected": "10.9"}), False),
        (record("pillow", {"introduced": "11.0.1"}), False),
        (record("pillow", {"introduced": "0"}, {"fixed": "10.1"}, {"introduced": "10.5"}), True),
        (record("python_multipart", versions=["0.0.19", "0.0.20"]), True),
        (record("pillow", {"introduced": "0"}, withdrawn="2026-01-01T00:00:00Z"), False),
        (record("numpy", {"introduced": "0"}), False),
    ],
)
def test_a_pin_is_vulnerable_as_the_database_says(tmp_path: Path, found: dict[str, Any], vulnerable: bool) -> None:
    assert [finding.id for finding in audit_by_file(PINS, export(tmp_path, found))] == ["PYSEC-1"] * vulnerable


def test_every_package_is_pinned_to_one_version() -> None:
    pins = read_pins(CONSTRAINTS)
    assert {"torch", "fastapi", "pillow", "uvicorn", "sqlalchemy"} <= pins.keys()
    assert all(version and "*" not in version for version in pins.values())


def test_a_file_that_is_no_database_is_no_clean_audit(tmp_path: Path) -> None:
    (tmp_path / "all.zip").write_bytes(b"<html>not found</html>")
    with pytest.raises(AuditFailed, match="can't be read"):
        audit_by_file(PINS, tmp_path / "all.zip")
    with pytest.raises(AuditFailed, match="no records"):
        audit_by_file(PINS, export(tmp_path))


@pytest.mark.parametrize(
    "answer",
    [
        "",
        '{"dependencies": []}',
        '{"dependencies": [{"name": "pillow", "version": "11.0.0", "skip_reason": "not found on PyPI"}]}',
    ],
)
def test_an_audit_without_answers_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    tool = tmp_path / "pip-audit"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    tool.chmod(0o755)
    monkeypatch.setattr(audit, "PIP_AUDIT", tool)
    monkeypatch.setattr(sys, "argv", ["audit"])
    with pytest.raises(SystemExit) as ended:
        audit.main()
    assert ended.value.code == 2
    assert "NOT AUDITED" in capsys.readouterr().err
