"""`make soak`: mixed traffic against a real server for a while, then checks of the ledger and of memory.

Images of every tier, edits, streams, disconnects, killed workers and swaps, on a few threads. Every minute it prints
the number of calls by outcome, and the least memory of the server and its workers. At the end, no call may hang, every
call must have got an answer, and the ledger must be consistent.

Memory: in the last quarter neither the server nor its workers may use a tenth more than in the quarter before, by the
median of the least in each minute: a leak is never given back, while the most depends on how many 4K images end at
once. Workers are killed in the first half only, because a new worker hides what the old one leaked. A soak of less than
twenty minutes does not check memory, because the workers' caches are still filling.
"""

import io
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx
import psutil
from openai import APIConnectionError, APIError, APIStatusError, OpenAI
from PIL import Image
from rich.console import Console

from server.settings import Settings
from tests.support.harness import Server

THREADS = 4
CALL_LIMIT_S = 900.0  # a call that takes longer hangs
KILL_EVERY_S = 240.0
SWAP_EVERY_S = 150.0
MEMORY_EVERY_S = 5.0
MAX_GROWTH = 1.1
MIN_QUARTER = 5  # minutes
MODELS = ("alpha-image-2-count", "beta-2.5-flash-image-count", "beta-3-pro-image-count")
LARGE = ("alpha-image-2-hd-count", "beta-3.1-flash-image-4k-count")


@dataclass(frozen=True)
class Memory:
    """Resident, in MiB."""

    server: float
    workers: float

    def minimum(self, other: "Memory") -> "Memory":
        return Memory(min(self.server, other.server), min(self.workers, other.workers))


@dataclass
class Soak:
    """The traffic, its outcomes and the memory."""

    server: Server
    until: float
    outcomes: Counter[str] = field(default_factory=Counter)
    memory: list[Memory] = field(default_factory=list)  # the least of every minute

    def run(self, report: Callable[[str], None]) -> None:
        """Send traffic until the time is over, and wait for every call to end."""
        half_time = (time.monotonic() + self.until) / 2
        threads = [threading.Thread(target=self._caller, args=(seed,), daemon=True) for seed in range(THREADS)]
        threads += [
            threading.Thread(target=self._every, args=(KILL_EVERY_S, half_time, self._kill_worker), daemon=True),
            threading.Thread(target=self._every, args=(SWAP_EVERY_S, self.until, self._swap), daemon=True),
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() < self.until:
            least, minute_end = self._memory(), time.monotonic() + 60
            while time.monotonic() < min(minute_end, self.until):
                time.sleep(MEMORY_EVERY_S)
                least = least.minimum(self._memory())
            self.memory.append(least)
            report(f"{least.server:.0f} and {least.workers:.0f} MiB; {dict(sorted(self.outcomes.items()))}")
        for thread in threads:
            thread.join(CALL_LIMIT_S)
            self.outcomes["hung"] += thread.is_alive()

    def _caller(self, seed: int) -> None:
        rng = random.Random(seed)
        client = self.server.openai(timeout=CALL_LIMIT_S)
        kinds: list[tuple[int, Callable[[OpenAI, random.Random], None]]] = [
            (5, _small), (2, _edit), (1, _large), (2, _stream), (2, _disconnect), (1, _invalid),
        ]  # fmt: skip
        while time.monotonic() < self.until:
            (call,) = rng.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
            try:
                call(client, rng)
                self.outcomes[call.__name__] += 1
            except APIStatusError as error:
                self.outcomes[f"{call.__name__} {error.status_code} {error.code}"] += 1
            except APIConnectionError as error:
                self.outcomes[f"{call.__name__} {type(error).__name__}"] += 1
            except APIError as error:  # an event of a stream that had begun
                self.outcomes[f"{call.__name__} event {error.code}"] += 1
            except Exception as error:
                self.outcomes[f"{call.__name__} broke: {error!r}"] += 1

    def _every(self, seconds: float, until: float, action: Callable[[], None]) -> None:
        while time.monotonic() + seconds < until:
            time.sleep(seconds)
            action()

    def _kill_worker(self) -> None:
        if pid := self.server.readiness()["worker_pid"]:
            psutil.Process(pid).kill()
            self.outcomes["workers killed"] += 1

    def _swap(self) -> None:
        target = "copy" if self.outcomes["swaps"] % 2 == 0 else "starter-alpha"
        done = self.server.darkroom("swap", MODELS[0], target)
        if done.returncode and "worker died meanwhile" in done.stderr:
            self.outcomes["swaps cut off by a kill"] += 1
        else:
            self.outcomes["swaps" if done.returncode == 0 else f"swaps refused: {done.stderr.strip()}"] += 1

    def _memory(self) -> Memory:
        assert self.server.process
        server = psutil.Process(self.server.process.pid)
        return Memory(_loaded_mib(server), sum(_loaded_mib(child) for child in server.children(recursive=True)))


def _loaded_mib(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.NoSuchProcess:  # killed meanwhile
        return 0.0


def _small(client: OpenAI, rng: random.Random) -> None:
    client.images.generate(model=rng.choice(MODELS), prompt="a red boat", size="1:1", n=rng.choice((1, 1, 2)))


def _large(client: OpenAI, rng: random.Random) -> None:
    client.images.generate(model=rng.choice(LARGE), prompt="a red boat", size="auto")


def _edit(client: OpenAI, rng: random.Random) -> None:
    image = io.BytesIO()
    Image.new("RGB", (512, 512), rng.choice(("red", "green", "blue"))).save(image, "PNG")
    client.images.edit(model=rng.choice(MODELS), prompt="at night", image=("a.png", image.getvalue()))


def _stream(client: OpenAI, rng: random.Random) -> None:
    stream = client.images.generate(model=rng.choice(MODELS), prompt="a cat", stream=True, partial_images=2)
    assert [event.type for event in stream][-1] == "image_generation.completed"


def _disconnect(client: OpenAI, rng: random.Random) -> None:
    try:
        impatient = client.with_options(timeout=rng.uniform(0.05, 3))
        impatient.images.generate(model=rng.choice(MODELS), prompt="a car")
    except APIConnectionError:
        return  # as intended


def _invalid(client: OpenAI, rng: random.Random) -> None:
    try:
        client.images.generate(model=rng.choice(MODELS), prompt="a car", size=rng.choice(("7x7", "blue", "99:1")))
    except APIStatusError as error:
        if error.status_code != 400:
            raise


def main() -> None:
    """Soak for the given number of minutes. Exits with 1 if there are problems."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30
    settings = Settings()
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights"
        shutil.copytree(settings.weights, weights)
        shutil.copytree(weights / "starter-alpha", weights / "copy")
        shutil.copytree(settings.model_configs, Path(folder) / "configs")
        server = Server(Path(folder) / "home", weights, Path(folder) / "configs").start()
        soak = Soak(server, time.monotonic() + 60 * minutes)
        try:
            soak.run(console.print)
            ledger_check = server.darkroom("ledger", "--check")
            readiness = httpx.get(f"{server.base}/readyz", trust_env=False).status_code
        finally:
            server.kill()
    problems = find_problems(soak, ledger_check, readiness)
    console.print("\n".join(problems) or "No problems.")
    sys.exit(bool(problems))


def find_problems(soak: Soak, ledger_check: subprocess.CompletedProcess[str], readiness: int) -> list[str]:
    bad = ("hung", "Connection", "Timeout", "refused", "broke", " 500 engine", " event engine", " 400 ")
    unexpected = {name: count for name, count in soak.outcomes.items() if count and any(word in name for word in bad)}
    return [
        *([f"unexpected: {unexpected}"] if unexpected else []),
        *memory_growth(soak.memory),
        *([f"the ledger: {ledger_check.stderr}"] if ledger_check.returncode else []),
        *([f"readyz answers {readiness}"] if readiness != 200 else []),
    ]


def memory_growth(minutes: list[Memory]) -> list[str]:
    """Which processes use more memory in the last quarter than in the one before."""
    quarter = len(minutes) // 4
    if quarter < MIN_QUARTER:
        return []
    before, after = minutes[-2 * quarter : -quarter], minutes[-quarter:]
    levels = {
        "the server": (median(memory.server for memory in before), median(memory.server for memory in after)),
        "workers": (median(memory.workers for memory in before), median(memory.workers for memory in after)),
    }
    return [f"{name} grew from {a:.0f} to {b:.0f} MiB" for name, (a, b) in levels.items() if b > MAX_GROWTH * a]


if __name__ == "__main__":
    main()
