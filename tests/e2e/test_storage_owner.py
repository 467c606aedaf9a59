"""A server that finds somebody else's images: it draws, removes nothing, and says what to do."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.accounts.copies import copy_sqlite
from tests.support.harness import PLAIN, Server, assert_clean

PATH = "/v1/images/generations"
STARTED: list[Server] = []
BODY = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count", "response_format": "url"}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture(autouse=True)
def started() -> Iterator[None]:
    """No server outlives a test that fails."""
    yield
    while STARTED:
        STARTED.pop().kill()


def make(home: Path, tiny: tuple[Path, Path], shared: Path, **settings: str) -> Server:
    weights, configs = tiny
    return Server(
        home, weights, configs, {"storage": str(shared), "result_grace_s": "0.001", **settings}, program=PLAIN
    )


def draw(server: Server) -> str:
    with server.http() as http:
        return str(httpx.URL(http.post(PATH, json=BODY).raise_for_status().json()["data"][0]["url"]).path)


def images(shared: Path) -> set[str]:
    return {path.name for path in shared.glob("??/*.png")}


def status(server: Server, path: str) -> int:
    return httpx.get(f"{server.base}{path}", trust_env=False).status_code


def test_a_server_with_another_database_removes_nothing(tmp_path: Path, tiny: tuple[Path, Path], shared: Path) -> None:
    production = make(tmp_path / "home", tiny, shared).start()
    draw(production)
    production.stop()
    before = images(shared)
    typo = make(tmp_path / "home", tiny, shared, database=f"sqlite:///{tmp_path / 'typo.db'}").start()
    assert "belongs to another database" in typo.log
    refused = typo.darkroom("store", "sweep", "--unknown")
    assert (refused.returncode, "belongs to another database" in refused.stderr) == (1, True)
    typo.stop()
    assert images(shared) == before


@pytest.mark.nightly
def test_a_mistyped_database_and_a_rehearsed_restore_lose_nothing(
    tmp_path: Path, tiny: tuple[Path, Path], shared: Path
) -> None:
    production = make(tmp_path / "home", tiny, shared).start()
    old = [draw(production) for _ in range(2)]
    backup = production.darkroom("backup", str(tmp_path / "backups"))
    assert backup.returncode == 0, backup.stderr
    (file,) = (tmp_path / "backups").iterdir()
    new = draw(production)
    production.stop()
    before = images(shared)

    typo = make(tmp_path / "home", tiny, shared, database=f"sqlite:///{tmp_path / 'typo.db'}").start()
    assert "belongs to another database" in typo.log
    assert "darkroom store adopt" in typo.log
    with typo.http(typo.admin_key) as http:
        assert "belongs to another database" in http.get("/admin/status").json()["storage_problem"]
    refused = typo.darkroom("store", "sweep", "--unknown")
    assert (refused.returncode, "belongs to another database" in refused.stderr) == (1, True)
    typo.stop()

    rehearsal = make(tmp_path / "rehearsal", tiny, shared, results_keep_days="0.0000001")
    restored = rehearsal.darkroom("restore", str(file), "--keep-catalog")
    assert "belongs to another database" in restored.stdout, restored.stderr
    rehearsal.start()
    assert [status(rehearsal, path) for path in (*old, new)] == [200, 200, 404]
    assert "belongs to another database" in rehearsal.log
    named = rehearsal.darkroom("ledger", "--check")
    assert (named.returncode, f"file {Path(new).name} has no record" in named.stdout) == (0, True), named.stdout
    with rehearsal.http() as http:  # whose dev-key is production's
        assert http.delete(f"/v1/darkroom/results/{Path(old[0]).name}").status_code == 200
    assert status(rehearsal, old[0]) == 404
    rehearsal.stop()
    assert images(shared) == before

    production.start()
    assert [status(production, path) for path in (*old, new)] == [200, 200, 200]
    swept = production.darkroom("store", "sweep")
    assert (swept.returncode, swept.stdout.partition(" ")[0]) == (0, "0"), swept.stderr
    assert images(shared) == before
    assert_clean(production)
    production.stop()


@pytest.mark.nightly
def test_a_database_of_yesterday_takes_the_storage_over_when_told(
    tmp_path: Path, tiny: tuple[Path, Path], shared: Path
) -> None:
    server = make(tmp_path / "home", tiny, shared).start()
    old = draw(server)
    copy_sqlite(tmp_path / "home" / "darkroom.db", tmp_path / "yesterday.db")
    server.stop()
    server.start()
    new = draw(server)
    server.stop()
    for name in ("darkroom.db-wal", "darkroom.db-shm"):
        (tmp_path / "home" / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "yesterday.db", tmp_path / "home" / "darkroom.db")
    server.start()
    assert "another copy of this database has used it" in server.log
    assert server.darkroom("store", "adopt").returncode == 0
    assert server.darkroom("store", "sweep").returncode == 0
    assert images(shared) == {Path(old).name, Path(new).name}
    forgotten = server.darkroom("store", "sweep", "--unknown")
    assert "1 files are in the trash" in forgotten.stdout, forgotten.stderr
    assert images(shared) == {Path(old).name}
    back = server.darkroom("store", "put-back", Path(new).name)
    assert "1 files are back. 0 of them" in back.stdout, back.stderr
    assert images(shared) == {Path(old).name, Path(new).name}
    assert server.darkroom("store", "put-back", f"{'0' * 32}.png").returncode == 1
    server.stop()


def test_a_folder_that_can_not_be_written_is_named_and_images_stay(tmp_path: Path, tiny: tuple[Path, Path]) -> None:
    """As a mount that is read-only, which root can't write either."""
    shared = tmp_path / "file"
    shared.write_text("no folder")
    server = make(tmp_path / "home", tiny, shared).start()
    assert f"Nothing is removed from {shared}: it can't be read or written" in server.log
    doctor = server.darkroom("doctor")
    assert "can't be read or written" in doctor.stdout
    server.stop()
