"""Processes that spend one budget and are killed meanwhile."""

import signal
import subprocess
import sys
import time

import pytest

from server.accounts import report
from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.ledger import Ledger
from server.accounts.paging import Page
from server.accounts.results import ResultStore
from tests.unit.accounts.helpers import GROUPS, clean

pytestmark = pytest.mark.slow

SPENDER = """
import os, signal, sys, uuid
from server.accounts.db import Database
from server.accounts.ledger import BilledCall, InsufficientBudget, Ledger
from server.accounts.results import ResultStore, StoredResult
url, key_id, crash_at, calls = sys.argv[1:5]
def crash_hook(point):
    if point == crash_at: os.kill(os.getpid(), signal.SIGKILL)
results = ResultStore(Database(url))
ledger = Ledger(Database(url), uuid.uuid4().hex, lease_s=0, crash_hook=crash_hook)
for _ in range(int(calls)):
    name = uuid.uuid4().hex
    try: ledger.hold(BilledCall(name, key_id, "e", "m", 1000))
    except InsufficientBudget: continue
    image = StoredResult(name, "image/png", 8, 8, 1, "0", 0)
    ledger.capture(name, 1000, [results.record_write(name, [image])])
    print(name, flush=True)
"""


def spender(url: str, key_id: str, crash_at: str = "", calls: int = 1) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SPENDER, url, key_id, crash_at, str(calls)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def captured_by(process: "subprocess.Popen[str]") -> set[str]:
    """The calls that a process reported as captured before it ended."""
    return set(process.communicate(timeout=240)[0].split())


def wait_for_entries(database: Database, count: int) -> None:
    while len(report.entries(database, page=Page(count))) < count:
        time.sleep(0.01)


@pytest.mark.parametrize(("point", "charged"), [("before-capture-commit", 0), ("after-capture-commit", 1)])
def test_a_kill_around_the_commit_leaves_all_or_nothing(database: Database, url: str, point: str, charged: int) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=1000)
    process = spender(url, key.id, point)
    assert captured_by(process) == set()
    assert process.returncode == -signal.SIGKILL
    assert Ledger(database, "next").void_orphans() == 1 - charged
    assert len(report.entries(database)) == charged
    assert clean(database)


def test_processes_that_are_killed_while_they_spend_never_overspend_or_lose_money(database: Database, url: str) -> None:
    key, _ = create_key(database, "a", GROUPS, budget=100_000)
    killed = [spender(url, key.id, calls=100_000) for _ in range(3)]
    survivor = spender(url, key.id, calls=100)
    for process, count in zip(killed, (7, 31, 48), strict=True):
        wait_for_entries(database, count)  # so that every kill happens while calls are charged
        process.kill()
    captured = set().union(*(captured_by(process) for process in [*killed, survivor]))
    assert [process.returncode for process in [*killed, survivor]] == [-signal.SIGKILL] * 3 + [0]

    stuck = report.balances(database)[0].held_units // 1000
    assert stuck <= 3  # a process holds one call at a time
    ledger = Ledger(database, "next")
    assert ledger.void_orphans() == stuck
    captured |= captured_by(spender(url, key.id, calls=stuck + 1))
    balance = report.balances(database)[0]
    assert (balance.spent_units, balance.held_units, balance.available_units) == (100_000, 0, 0)
    assert captured <= ResultStore(database).recorded(captured)
    assert len(report.entries(database, page=Page(1000))) == 100
    assert clean(database)
