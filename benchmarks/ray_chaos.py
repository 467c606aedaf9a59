"""`make chaos`, over a Ray cluster: two nodes on this machine, with two gateways, two image engines and a chat engine.

KILLS times something dies by SIGKILL: an engine's worker, the actor around it, a gateway, the supervisor, a whole node
(its raylet and all that it started) which then joins again, PostgreSQL, or the way to the store. The workers are real
ones, of tiny checkpoints.
"""

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.chaos import Chaos
from tests.support.harness import Server
from tests.support.object_store import object_store
from tests.support.postgresql import Cluster
from tests.support.ray_cluster import SUPERVISOR_TITLE, RayCluster, ray_cluster

TARGETS = {
    "engine worker": 4, "engine": 4, "gateway": 4, "supervisor": 2, "node": 1, "decoder": 3, "database": 1, "store": 2,
}  # fmt: skip
TITLES = {"engine": b"ray::EngineActor", "gateway": b"ray::Gateway", "supervisor": SUPERVISOR_TITLE}
COMMANDS = {"engine worker": b"pipelines.worker\0", "decoder": b"decoding.worker"}


@dataclass
class RayChaos(Chaos):
    """`servers` stand for the gateways, and have the homes of the nodes."""

    nodes: RayCluster | None = None

    @property
    def _targets(self) -> dict[str, int]:
        return TARGETS

    def _kill_one(self, target: str, rng: random.Random) -> bool:
        assert self.nodes is not None
        if target in {"database", "store"}:
            return super()._kill_one(target, rng)
        if target == "node":
            self.nodes.b.kill()
            time.sleep(rng.uniform(0, 2))
            self.nodes.join(self.nodes.b)
        else:
            found = [pid for pid, command in self.nodes.commands() if _is(target, command)]
            if not found:
                return False
            os.kill(rng.choice(found), signal.SIGKILL)
        if target != "decoder":
            self._recount()
        return True


def _is(target: str, command: bytes) -> bool:
    return command.startswith(TITLES[target]) if target in TITLES else COMMANDS[target] in command


@contextlib.contextmanager
def ray_chaos(folder: Path) -> Iterator[RayChaos]:
    """On one PostgreSQL and one S3 server."""
    with (
        object_store() as store,
        Cluster.temporary() as database,
        pytest.MonkeyPatch.context() as environment,
    ):
        store.connect()
        for name, value in store.environment.items():
            environment.setenv(name, value)
        url = database.new("template0")
        settings = {"DARKROOM_LEASE_S": "5", "DARKROOM_RESULT_GRACE_S": "5", "DARKROOM_MAX_RUNNING_PER_KEY": "64"}
        with ray_cluster(folder, url, store.url, {**store.environment, **settings}) as nodes:
            shared = {"database": url, "storage": store.url}
            servers = [
                Server(node.home, node.weights, node.configs, shared, port=nodes.port + index)
                for index, node in enumerate((nodes.a, nodes.b))
            ]
            yield RayChaos(servers, database, store, nodes=nodes)


def main() -> None:
    """Kill as often as the first argument says, by the seed that is the second. Exits with 1 if there are problems."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as home, ray_chaos(Path(home)) as chaos:
        began = time.monotonic()
        chaos.run(kills, seed, report=lambda line: console.print(f"{time.monotonic() - began:.0f} s: {line}"))
        console.print(f"Ray: {sum(chaos.kills.values())} kills ({dict(chaos.kills)}), {chaos.recounts} recounts")
        console.print(f"  {sum(chaos.outcomes.values())} calls: {dict(sorted(chaos.outcomes.items()))}")
        console.print("\n".join(chaos.problems) or "  No problems: no wrong charge, nothing left.")
        sys.exit(bool(chaos.problems))


if __name__ == "__main__":
    main()
