"""What operators read and change on the command line, against HTTP on the same database."""

import csv
import io
import json
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from server.accounts.audit import record_change
from server.accounts.batches import Batch, BatchLine, BatchStore
from server.accounts.db import Database
from server.accounts.keys import authenticate, create_key
from server.accounts.ledger import Ledger
from server.cli.app import main
from server.clock import Clock
from server.flows.operators import doctor, gpu_findings
from tests.support.in_process import InProcess, in_process
from tests.unit.accounts.helpers import GROUPS, call, capture, result

Run = Callable[..., tuple[int, str, str]]
OCTOBER = datetime(2026, 10, 15, tzinfo=UTC).timestamp()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command on a home of its own, where a server has run: its exit status, stdout and stderr."""
    database(tmp_path).dispose()
    monkeypatch.setenv("DARKROOM_HOME", str(tmp_path))
    monkeypatch.delenv("DARKROOM_DATABASE", raising=False)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["darkroom", *arguments])
        capsys.readouterr()
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        else:
            status = 0
        return (status, *capsys.readouterr())

    return run_command


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[InProcess]:
    (tmp_path / "admin-key").write_text("admin")
    async with in_process(tmp_path) as app:
        yield app


def database(tmp_path: Path) -> Database:
    opened = Database(f"sqlite:///{tmp_path / 'darkroom.db'}")
    opened.migrate()
    return opened


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def cents(row: Any) -> int:
    return round(float(row["amount"]) * 10_000)


@pytest.mark.parametrize("group", ["", " ", ","])
def test_an_empty_group_is_not_all_of_them(run: Run, group: str) -> None:
    assert run("keys", "create", "shop", "--group", group) == (1, "", "Invalid 'groups': it must not be empty.\n")
    run("keys", "create", "desk")
    assert run("keys", "set", "desk", "--group", group)[0] == 1


def test_full_ids_are_printed_into_a_pipe(run: Run) -> None:
    secret = run("keys", "create", "web shop", "-g", "alpha-image-per-call", "--monthly-budget", "5")[1]
    assert secret.startswith("sk-dr-")
    (listed,) = json.loads(run("keys", "list", "--json")[1])
    assert listed["id"] in run("keys", "list")[1]
    assert rows(run("keys", "list", "--csv")[1])[0]["id"] == listed["id"]
    assert (listed["monthly_budget"], listed["groups"]) == ("5.00", ["alpha-image-per-call"])


def test_a_key_is_changed_by_name_or_prefix(run: Run) -> None:
    run("keys", "create", "web shop")
    (before,) = json.loads(run("keys", "list", "--json")[1])
    status, said, _ = run("keys", "set", "web", "--name", "shop", "--days", "3", "--max-running", "2", "--budget", "9")
    assert status == 0
    assert "2 calls at once" in said
    run("keys", "set", before["id"][:12], "--days", "never", "--budget", "none", "-g", "chat", "--note", "x")
    (after,) = json.loads(run("keys", "list", "--json")[1])
    assert [after[name] for name in ("name", "expires_at", "budget", "max_running", "groups", "note")] == [
        "shop", None, None, 2, ["chat"], "x",
    ]  # fmt: skip
    for wrong in (
        ("keys", "set", "nobody"),
        ("keys", "create", "x", "-g", "none"),
        ("keys", "set", "shop", "--days", "x"),
    ):
        status, _, said = run(*wrong)
        assert status == 1
        assert said.count("\n") == 1


def test_a_rotated_key_keeps_its_old_secret_for_a_while(run: Run, tmp_path: Path) -> None:
    old = run("keys", "create", "shop")[1].strip()
    new = run("keys", "rotate", "shop", "--overlap-hours", "1")[1].strip()
    opened = database(tmp_path)
    assert authenticate(opened, old) == authenticate(opened, new) is not None
    run("keys", "rotate", "shop", "--overlap-hours", "0")
    assert authenticate(opened, new) is None
    opened.dispose()


def test_every_listing_has_json_and_csv(run: Run) -> None:
    run("keys", "create", "shop")
    run("operators", "create", "anna")
    for listing in (
        ["keys", "list"], ["operators", "list"], ["models"], ["checkpoints", "list"], ["ledger"], ["usage"], ["calls"],
        ["audit"], ["moderation"],
    ):  # fmt: skip
        status, printed, _ = run(*listing, "--json")
        assert status == 0, listing
        entries = json.loads(printed)
        status, printed, _ = run(*listing, "--csv")
        assert status == 0, listing
        assert len(rows(printed)) == len(entries), listing
    actions = [entry["action"] for entry in json.loads(run("audit", "--json")[1])]
    assert actions == ["operator.create", "key.create"]
    assert run("--version")[1].startswith("darkroom 0.")
    assert run("operators", "revoke", "anna")[0] == 0
    assert run("operators", "revoke", "anna")[0] == 1


def test_a_listing_says_when_it_is_not_all_and_an_export_is_whole(run: Run, tmp_path: Path) -> None:
    run("keys", "create", "shop")
    opened = database(tmp_path)
    for number in range(24):
        record_change(opened, "test", "key.update", str(number))
    opened.dispose()
    status, shown, said = run("audit")
    assert (status, shown.count("key.update"), shown.count("key.create")) == (0, 20, 0)
    assert said == "These are the newest 20; --entries N shows more.\n"
    assert run("audit", "--entries", "25")[2] == ""
    for exported in (rows(run("audit", "--csv")[1]), json.loads(run("audit", "--json")[1])):
        assert len(exported) == 25
    status, printed, said = run("audit", "--csv", "--entries", "3")
    assert (len(rows(printed)), "the newest 3" in said) == (3, True)
    for listing in ("ledger", "calls", "moderation"):
        assert "the newest" not in run(listing)[2]


def answer_checks(monkeypatch: pytest.MonkeyPatch, found: dict[str, object]) -> None:
    """Have the doctor's trial of a worker's device find this."""
    command = [sys.executable, "-c", f"print({json.dumps(found)!r})"]
    monkeypatch.setattr(gpu_findings, "python_command", lambda *_: command)


def test_the_doctor_names_what_is_wrong(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("DARKROOM_PORT", "0")
    works = {"torch": "2.9", "cuda": "12.8", "problems": [], "works": True, "is_gpu": True, "device": "One GPU"}
    answer_checks(monkeypatch, works)
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 0)
    run("keys", "create", "shop")
    status, printed, _ = run("doctor", "--json")
    found = {each["name"]: each for each in json.loads(printed)}
    assert found.keys() == {
        "settings", "driver", "cuda", "memory", "disk", "port", "permissions", "database", "storage", "catalog",
        "egress",
    }  # fmt: skip
    assert status == any(each["ok"] is False for each in found.values())
    assert (found["cuda"]["ok"], found["port"]["ok"], found["permissions"]["ok"]) == (True, True, True)
    assert "DARKROOM_PORT" in found["settings"]["detail"]
    assert found["cuda"]["detail"] == "torch 2.9 for CUDA 12.8 sees One GPU"
    assert found["database"]["detail"].startswith("sqlite, schema 00")
    tmp_path.chmod(0o755)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "alpha.toml").write_text("price = ")
    monkeypatch.setenv("DARKROOM_MODEL_CONFIGS", str(tmp_path / "broken"))
    monkeypatch.setenv("DARKROOM_DEVICE", "cuda")
    fails = {"cuda": None, "is_gpu": False, "works": False, "problems": ["it is for CPUs alone."]}
    answer_checks(monkeypatch, works | fails)
    status, printed, _ = run("doctor")
    assert status == 1
    for said in ("it is for CPUs alone.", "chmod 700", "alpha.toml"):
        assert said in printed


async def test_who_spent_what_last_month_is_the_same_everywhere(
    running: InProcess, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = database(tmp_path)
    ledger = Ledger(opened, "me")
    moments = [OCTOBER, OCTOBER, datetime(2026, 11, 1, tzinfo=UTC).timestamp()]
    for number, moment in enumerate(moments):
        monkeypatch.setattr(Clock, "now", lambda _, moment=moment: moment)
        key, _ = create_key(opened, f"team {number % 2}", GROUPS)
        ledger.hold(call(f"c{number}", key.id, 1000 * (number + 1)))
        capture(ledger, f"c{number}", [result(f"p{number}")])
    monkeypatch.undo()
    monkeypatch.setenv("DARKROOM_HOME", str(tmp_path))
    opened.dispose()
    path, admin = "/admin/usage?from=2026-10&to=2026-10&by=key,month", {"Authorization": "Bearer admin"}
    over_http = (await running.client.get(path, headers=admin)).json()["data"]
    as_file = rows((await running.client.get(f"{path}&format=csv", headers=admin)).text)
    command = ("usage", "--month", "2026-10", "--by", "key,month")
    printed, exported = json.loads(run(*command, "--json")[1]), rows(run(*command, "--csv")[1])
    charged = json.loads(run("ledger", "--from", "2026-10", "--to", "2026-10", "--json")[1])
    answers = [over_http, as_file, printed, exported]
    assert [[(row["key_id"], cents(row)) for row in answer] for answer in answers] == [
        [(row["key_id"], cents(row)) for row in over_http]
    ] * 4
    assert [sum(map(cents, answer)) for answer in (*answers, charged)] == [3000] * 5
    assert "Total: 0.30 CNY for 2 calls" in run(*command)[1]


def test_batches_of_every_key_are_listed_shown_and_cancelled(run: Run, tmp_path: Path) -> None:
    opened = database(tmp_path)
    store, now = BatchStore(opened, "server"), opened.clock.now()
    error = json.dumps({"error": {"code": "model_not_found", "message": "There is no such model."}})
    for index in range(2):
        key, _ = create_key(opened, f"shop {index}", GROUPS)
        batch = Batch(f"batch_{index}", key.id, None, None, "http://a", {}, 3, now + index, now + 86_400)
        store.create(batch, [BatchLine(line, f"line-{line}", "/v1/responses", "{}") for line in range(3)])
    store.record("batch_1", BatchLine(0, "line-0", "/v1/responses", "{}", 200, "req_1", "{}"))
    store.record("batch_1", BatchLine(1, "line-1", "/v1/responses", "{}", 404, "req_2", error))
    opened.dispose()

    listed = json.loads(run("batches", "list", "--json")[1])
    assert [(each["id"], each["key_name"], each["completed"], each["failed"]) for each in listed] == [
        ("batch_1", "shop 1", 1, 1), ("batch_0", "shop 0", 0, 0),
    ]  # fmt: skip
    assert [each["id"] for each in rows(run("batches", "list", "--key", "shop 0", "--csv")[1])] == ["batch_0"]
    shown = run("batches", "show", "batch_1")[1]
    assert "batch_1: in_progress, 1 of 3 lines completed, 1 failed." in shown
    assert "line-1" in shown
    assert "There is no such model." in shown
    assert "line-0" not in shown
    assert [line["status"] for line in json.loads(run("batches", "show", "batch_1", "--json")[1])] == [200, 404, None]
    assert "batch_1: cancelling, 2 of 3 lines have an answer." in run("batches", "cancel", "batch_1")[1]
    assert BatchStore(database(tmp_path), "server").end_due("batch_1") == "cancelled"
    status, _, told = run("batches", "show", "batch_9")
    assert (status, "There is no batch 'batch_9'" in told) == (1, True)
    (change,) = json.loads(run("audit", "--target", "batch_1", "--json")[1])
    assert change["action"] == "batch.cancel"


async def test_a_team_is_made_and_its_sums_are_the_same_everywhere(
    running: InProcess, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = {"Authorization": "Bearer admin"}
    monkeypatch.setenv("DARKROOM_HOME", str(tmp_path))
    assert run("teams", "create", "design", "--monthly-budget", "0.3")[0] == 0
    assert "There is a team 'design' already" in run("teams", "create", "design")[2]
    assert "There are: 'design'." in run("keys", "create", "shop", "--team", "desing")[2]
    secret = run("keys", "create", "shop", "--team", "design")[1].strip()
    other = await running.client.post("/admin/keys", headers=admin, json={"name": "print", "team": "design"})
    opened = database(tmp_path)
    ledger = Ledger(opened, "me")
    ledger.hold(call("c1", other.json()["id"], 2000))
    capture(ledger, "c1", [result("p1")])
    opened.dispose()
    me = (await running.client.get("/v1/darkroom/me", headers={"Authorization": f"Bearer {secret}"})).json()
    assert (me["team"], me["available"], me["spent"]) == ("design", "0.10", "0.00")
    (listed,) = json.loads(run("teams", "list", "--json")[1])
    assert (await running.client.get("/admin/teams", headers=admin)).json()["data"] == [listed]
    assert [listed[name] for name in ("keys", "spent_this_month", "available")] == [2, "0.20", "0.10"]
    over_http = (await running.client.get("/admin/usage?by=team&team=design", headers=admin)).json()["data"]
    as_file = rows((await running.client.get("/admin/usage?by=team&format=csv", headers=admin)).text)
    exported = rows(run("usage", "--by", "team", "--team", "design", "--csv")[1])
    charges = rows((await running.client.get(f"/admin/ledger?team={listed['id']}&format=csv", headers=admin)).text)
    assert [(row["team_name"], cents(row)) for row in (*over_http, *as_file, *exported, *charges)] == [
        ("design", 2000)
    ] * 4
    assert "no monthly budget" in run("teams", "set", "design", "--name", "studio", "--monthly-budget", "none")[1]
    assert "; no team;" in run("keys", "set", "shop", "--team", "none")[1]
    sent = await running.client.patch("/admin/teams/studio", headers=admin, json={"monthly_budget": "x"})
    assert (sent.status_code, sent.json()["error"]["param"]) == (400, "monthly_budget")
    assert (await running.client.patch("/admin/teams/shop", headers=admin, json={})).json()["error"]["param"] == "team"
