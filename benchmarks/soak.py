"""`make soak`: mixed traffic against a real server for a while, then the books.

Pictures of every tier, edits, streams, cut calls, killed workers and swaps, on a few threads. Every minute it says how
many calls ended how, and the most memory that the server and its workers had. At the end: no call may hang, none may
end in a way that is not an answer of the server, and the ledger is clean. Workers are killed in the first half only,
because a new one hides what the old one leaked: in the last quarter neither the server nor its workers may have a tenth
more than in the quarter before, by the median of the minutes, as one with a swap beside a 4K picture says nothing. A
soak of less than twenty minutes does not judge memory: workers are still growing into their traffic.
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
LOOK_EVERY_S = 5.0  # at memory
GROWTH = 1.1
LEAST_QUARTER = 5  # minutes
MODELS = ("alpha-image-2-count", "beta-2.5-flash-image-count", "beta-3-pro-image-count")
LARGE = ("alpha-image-2-hd-count", "beta-3.1-flash-image-4k-count")


@dataclass(frozen=True)
class Memory:
    """Resident, in MiB."""

    server: float
    workers: float

    def most(self, other: "Memory") -> "Memory":
        """The larger ones."""
        return Memory(max(self.server, other.server), max(self.workers, other.workers))


@dataclass
class Soak:
    """The traffic, and what became of it."""

    server: Server
    until: float
    outcomes: Counter[str] = field(default_factory=Counter)
    memory: list[Memory] = field(default_factory=list)  # the most of every minute

    def run(self, say: Callable[[str], None]) -> None:
        """Until the time is over and every call has ended."""
        half_time = (time.monotonic() + self.until) / 2
        threads = [threading.Thread(target=self._caller, args=(seed,), daemon=True) for seed in range(THREADS)]
        threads += [
            threading.Thread(target=self._every, args=(KILL_EVERY_S, half_time, self._kill_worker), daemon=True),
            threading.Thread(target=self._every, args=(SWAP_EVERY_S, self.until, self._swap), daemon=True),
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() < self.until:
            most, minute = self._memory(), time.monotonic() + 60
            while time.monotonic() < min(minute, self.until):
                time.sleep(LOOK_EVERY_S)
                most = most.most(self._memory())
            self.memory.append(most)
            say(f"{most.server:.0f} and {most.workers:.0f} MiB; {dict(sorted(self.outcomes.items()))}")
        for thread in threads:
            thread.join(CALL_LIMIT_S)
            self.outcomes["hung"] += thread.is_alive()

    def _caller(self, seed: int) -> None:
        chance = random.Random(seed)
        client = self.server.openai(timeout=CALL_LIMIT_S)
        kinds: list[tuple[int, Callable[[OpenAI, random.Random], None]]] = [
            (5, _small), (2, _edit), (1, _large), (2, _stream), (2, _cut), (1, _wrong),
        ]  # fmt: skip
        while time.monotonic() < self.until:
            (call,) = chance.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
            try:
                call(client, chance)
                self.outcomes[call.__name__] += 1
            except APIStatusError as error:
                self.outcomes[f"{call.__name__} {error.status_code} {error.code}"] += 1
            except APIConnectionError as error:
                self.outcomes[f"{call.__name__} {type(error).__name__}"] += 1
            except APIError as error:  # an event of a stream that had begun
                self.outcomes[f"{call.__name__} event {error.code}"] += 1
            except Exception as error:
                self.outcomes[f"{call.__name__} broke: {error!r}"] += 1

    def _every(self, seconds: float, until: float, work: Callable[[], None]) -> None:
        while time.monotonic() + seconds < until:
            time.sleep(seconds)
            work()

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
        return Memory(_resident_mib(server), sum(_resident_mib(child) for child in server.children(recursive=True)))


def _resident_mib(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.NoSuchProcess:  # killed meanwhile
        return 0.0


def _small(client: OpenAI, chance: random.Random) -> None:
    client.images.generate(model=chance.choice(MODELS), prompt="a red boat", size="1:1", n=chance.choice((1, 1, 2)))


def _large(client: OpenAI, chance: random.Random) -> None:
    client.images.generate(model=chance.choice(LARGE), prompt="a red boat", size="auto")


def _edit(client: OpenAI, chance: random.Random) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (512, 512), chance.choice(("red", "green", "blue"))).save(picture, "PNG")
    client.images.edit(model=chance.choice(MODELS), prompt="at night", image=("a.png", picture.getvalue()))


def _stream(client: OpenAI, chance: random.Random) -> None:
    stream = client.images.generate(model=chance.choice(MODELS), prompt="a cat", stream=True, partial_images=2)
    assert [event.type for event in stream][-1] == "image_generation.completed"


def _cut(client: OpenAI, chance: random.Random) -> None:
    try:
        impatient = client.with_options(timeout=chance.uniform(0.05, 3))
        impatient.images.generate(model=chance.choice(MODELS), prompt="a car")
    except APIConnectionError:
        return  # as intended


def _wrong(client: OpenAI, chance: random.Random) -> None:
    try:
        client.images.generate(model=chance.choice(MODELS), prompt="a car", size=chance.choice(("7x7", "blue", "99:1")))
    except APIStatusError as error:
        if error.status_code != 400:
            raise


def main() -> None:
    """Soak for the minutes given, and exit with 1 if anything was amiss."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30
    settings = Settings()
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as place:
        weights = Path(place) / "weights"
        shutil.copytree(settings.weights, weights)
        shutil.copytree(weights / "starter-alpha", weights / "copy")
        shutil.copytree(settings.model_configs, Path(place) / "configs")
        server = Server(Path(place) / "home", weights, Path(place) / "configs").start()
        soak = Soak(server, time.monotonic() + 60 * minutes)
        try:
            soak.run(console.print)
            checked = server.darkroom("ledger", "--check")
            lives = httpx.get(f"{server.base}/readyz", trust_env=False).status_code
        finally:
            server.kill()
    problems = list(amiss(soak, checked, lives))
    console.print("\n".join(problems) or "Nothing amiss.")
    sys.exit(bool(problems))


def amiss(soak: Soak, checked: subprocess.CompletedProcess[str], lives: int) -> list[str]:
    """What should not be."""
    never = ("hung", "Connection", "Timeout", "refused", "broke", " 500 engine", " event engine", " 400 ")
    unexpected = {name: count for name, count in soak.outcomes.items() if count and any(word in name for word in never)}
    return [
        *([f"unexpected: {unexpected}"] if unexpected else []),
        *grown(soak.memory),
        *([f"the ledger: {checked.stderr}"] if checked.returncode else []),
        *([f"readyz answers {lives}"] if lives != 200 else []),
    ]


def grown(minutes: list[Memory]) -> list[str]:
    """What has more memory in the last quarter than in the one before."""
    quarter = len(minutes) // 4
    if quarter < LEAST_QUARTER:
        return []
    before, after = minutes[-2 * quarter : -quarter], minutes[-quarter:]
    levels = {
        "the server": (median(look.server for look in before), median(look.server for look in after)),
        "workers": (median(look.workers for look in before), median(look.workers for look in after)),
    }
    return [f"{name} grew from {a:.0f} to {b:.0f} MiB" for name, (a, b) in levels.items() if b > GROWTH * a]


if __name__ == "__main__":
    main()
