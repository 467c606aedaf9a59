"""Nobody but its owner can look into a home."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.housekeeping import make_private


def test_a_home_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_home_that_cannot_be_made_private_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(path)

    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    with capture_logs() as logs:
        make_private(tmp_path)
    assert [entry["home"] for entry in logs] == [str(tmp_path)]
