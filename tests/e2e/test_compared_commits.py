"""`make bench BASE=commit` measures servers as they are: two that are the same, and what they use."""

from pathlib import Path

import pytest

from benchmarks.calls import post
from benchmarks.compare import measured, paired, processor_s, unpack
from tests.support.harness import PLAIN, REPOSITORY, MakeServer, Server

MODEL = "alpha-image-2-count"


def draw(server: Server) -> None:
    with server.http() as client:
        post(client, MODEL, 1)


def test_two_servers_take_turns_and_their_processor_time_is_that_of_all_their_processes(make_tiny: MakeServer) -> None:
    base, new = make_tiny(PLAIN), make_tiny(PLAIN)
    before = processor_s(base)
    clock, processor = paired("one call", lambda server: measured(server, draw), base, new, most_pairs=2)
    assert len(clock.base_s) == len(clock.new_s) == 2
    assert min(*clock.base_s, *clock.new_s) > 0
    assert "2 pairs, and 8 are needed" in clock.verdict
    assert processor_s(base) - before >= sum(processor.base_s)


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="needs a clone")
def test_a_commit_is_unpacked_and_one_that_is_not_here_is_named(tmp_path: Path) -> None:
    code = unpack("HEAD", tmp_path)
    assert (code / "server" / "app.py").is_file()
    assert (code / "weights" / "starter-alpha" / "model_index.json").is_file()
    with pytest.raises(SystemExit, match="BASE=no-commit"):
        unpack("no-commit", tmp_path)
