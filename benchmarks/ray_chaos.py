"""`make chaos`, over a Ray cluster: two nodes on this machine, two servers, two image engines and a chat engine.

KILLS times something dies by SIGKILL: an engine's worker, the actor around it, a server, a whole node (its raylet and
all that it started) which then joins again, PostgreSQL, or the way to the store. The workers are real ones, of tiny
checkpoints.
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

from rich.console import Console

from benchmarks.chaos import Chaos
from tests.support.object_store import object_store
from tests.support.postgresql import Cluster
from tests.support.processes import command_of, group
from tests.support.ray_cluster import RayCluster, ray_cluster

TARGETS = {
    "engine worker": 4, "engine": 4, "API": 4, "node": 1, "decoder": 3, "database": 1, "store": 2,
}  # fmt: skip
TITLES = {"engine": b"ray::EngineActor", "engine worker": b"pipelines.worker\0"}


@dataclass
class RayChaos(Chaos):
    ray: RayCluster | None = None

    @property
    def _targets(self) -> dict[str, int]:
        return TARGETS

    def _kill_one(self, target: str, rng: random.Random) -> bool:
        assert self.ray is not None
        if target == "node":
            self.ray.b.kill()
            time.sleep(rng.uniform(0, 2))
            self.ray.join()
        elif target in TITLES:
            started = [node.process.pid for node in (self.ray.a, self.ray.b) if node.process is not None]
            found = [pid for first in started for pid in group(first) if TITLES[target] in command_of(pid)]
            if not found:
                return False
            os.kill(rng.choice(found), signal.SIGKILL)
        else:
            return super()._kill_one(target, rng)
        self._recount()
        return True


@contextlib.contextmanager
def ray_chaos(folder: Path) -> Iterator[RayChaos]:
    """On one PostgreSQL and one S3 server."""
    with object_store() as store, Cluster.temporary() as database:
        store.connect()
        url = database.new("template0")
        settings = {"lease_s": "5", "result_grace_s": "5", "max_running_per_key": "64"}
        with ray_cluster(folder, url, store.url, store.environment, **settings) as cluster:
            yield RayChaos(cluster.servers, database, store=store, ray=cluster)


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
