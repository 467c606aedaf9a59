"""Runs many commands of `darkroom`, each in a process of its own that is forked from one which has imported them.

As a program it reads a JSON list of runs from each line of stdin, and writes a line with what came of them.
"""

import atexit
import codecs
import contextlib
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.protocol.processes import importing
from server.data_folders import REPOSITORY
from tests.support.shared import trust_one_certificate

LIMIT_S = 120


@dataclass(frozen=True)
class Run:
    """A command with its arguments; the environment is this alone. `uid` None: whoever runs the tests."""

    arguments: Sequence[str]
    environment: dict[str, str]
    uid: int | None = None


@dataclass(frozen=True)
class Ended:
    """What a terminal shows of a command, and its exit status; 142 for one that did not end."""

    arguments: Sequence[str]
    status: int
    output: str
    errors: str


class Commands:
    """The process that has imported them."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.support.forked_commands"]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, runs: Sequence[Run]) -> list[Ended]:
        """Run them one after another."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([asdict(run) for run in runs]) + "\n")
        self._process.stdin.flush()
        return [Ended(**each) for each in json.loads(self._process.stdout.readline())]

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()


def _run(run: Run) -> Ended:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        if (child := os.fork()) == 0:
            try:
                os._exit(_in_child(run, output.fileno(), errors.fileno()))
            finally:
                os._exit(70)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="backslashreplace"))
        return Ended(run.arguments, status if status >= 0 else 128 - status, *texts)


def _in_child(run: Run, output: int, errors: int) -> int:
    import signal

    from server.cli.app import main

    signal.alarm(LIMIT_S)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.environ.clear()
    os.environ.update(run.environment)
    if run.uid is not None:
        os.setgroups([])
        os.setgid(run.uid)
        os.setuid(run.uid)
    sys.argv = ["darkroom", *run.arguments]
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 70
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _import_all() -> None:
    """What commands import when they run: the user of a run may not be able to read it."""
    import rich.console  # noqa: F401
    import sqlalchemy.dialects.sqlite  # noqa: F401
    from sqlalchemy.orm import configure_mappers

    import server
    from server.accounts.schema import newest_schema

    codecs.lookup("utf-8-sig")
    for module in pkgutil.walk_packages(server.__path__, "server."):
        if not module.name.startswith("server.accounts.migrations"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    trust_one_certificate()
    configure_mappers()
    newest_schema()


if __name__ == "__main__":
    with importing():  # else the collector of each child writes to all of it, and so copies it
        _import_all()
    for line in sys.stdin:
        print(json.dumps([asdict(_run(Run(**each))) for each in json.loads(line)]), flush=True)
