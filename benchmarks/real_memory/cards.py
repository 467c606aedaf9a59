"""What `runtime = "auto"` chooses for published checkpoints on real cards, and the memory that it takes at the peak."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from benchmarks.real_memory.networks import CHECKPOINTS
from benchmarks.real_memory.parts import ROWS, Measured, Part, measured
from pipelines.checkpoints.memory.device_bytes import device_bytes
from pipelines.checkpoints.memory.host_bytes import LIMITS, page_locked_bytes, rounded_below_bytes, waiting_on_host
from pipelines.checkpoints.memory.runtime import choose_runtime
from pipelines.checkpoints.memory.shares import CONTEXT_BYTES, Room, weights_budget
from pipelines.device.memory import HELD_SHARE
from pipelines.protocol.images import Quantize, Runtime

GIB: Final = 2**30
WORKSPACES: Final = 1.4  # of a codec: the convolutions' workspaces took 20 to 50 % in others' measurements
PROMPTS_BYTES: Final = 2**28  # the kept prompts of a checkpoint
CONF: Final = "PYTORCH_ALLOC_CONF"
TITLE: Final = (
    'runtime = "auto": what is chosen (GiB of the GPU at the peak; of four images together; + GiB of the host, page-'
    "locked by torch 2.13, and by one that rounds each tensor)"
)
WORDS: Final = {"none": "plain", "fp8": "fp8", "float8": "float8"}


@dataclass(frozen=True)
class Card:
    """A GPU: the GiB that it has for programs, and its compute capability."""

    name: str
    gib: float
    capability: tuple[int, int]


CARDS: Final = (
    Card("8 GB (RTX 4060)", 7.6, (8, 9)),
    Card("12 GB (RTX 4070)", 11.6, (8, 9)),
    Card("16 GB (RTX 4080)", 15.6, (8, 9)),
    Card("24 GB (RTX 3090)", 23.5, (8, 6)),
    Card("24 GB (RTX 4090)", 23.5, (8, 9)),
    Card("32 GB (RTX 5090)", 31.4, (12, 0)),
    Card("40 GB (A100)", 39.4, (8, 0)),
    Card("48 GB (L40S)", 44.5, (8, 9)),
    Card("80 GB (H100)", 79.2, (9, 0)),
    Card("96 GB (RTX PRO 6000)", 94.9, (12, 0)),
    Card("141 GB (H200)", 139.8, (9, 0)),
)


@dataclass(frozen=True)
class Choice:
    """What is chosen for a checkpoint on a card, and the GiB of the card at the peak: of one image, and of four whose
    passes are shared. `host_gib` are those of weights that wait on the host, `rounded_gib` those that they take with a
    torch that rounds all of them up to a power of two."""

    runtime: Runtime
    gib: float
    together_gib: float
    host_gib: float
    rounded_gib: float

    def __str__(self) -> str:
        words = [WORDS[self.runtime.quantize], *([self.runtime.offload] if self.runtime.offload != "none" else [])]
        together = f", {self.together_gib:.0f}" if self.runtime.offload in {"none", "encoders"} else ""
        host = f" + {self.host_gib:.0f}, rounded {self.rounded_gib:.0f}" if self.host_gib else ""
        return f"{' '.join(words)} ({self.gib:.0f}{together}{host})"


def choice(name: str, card: Card) -> Choice:
    """Return what is chosen for a checkpoint on a card that nothing else uses, in a host with room for it."""
    parts, total = measured(name), card.gib * GIB
    runtime, _ = choose_runtime(parts.sizes, Room(int(weights_budget(total, total, 0))), card.capability)
    waiting = waiting_on_host(parts.sizes(runtime.quantize), runtime)
    sizes = [page_locked_bytes(waiting, limit) / GIB for limit in (rounded_below_bytes({CONF: LIMITS}), math.inf)]
    return Choice(runtime, *(_peak(parts, runtime, total, rows) / GIB for rows in ROWS), *sizes)


def _peak(parts: Measured, runtime: Runtime, total: float, rows: int) -> float:
    """Return the bytes at the peak of so many images of a megapixel; larger ones are redrawn in tiles of that size."""
    denoiser = parts.denoiser[runtime.quantize]
    phases: list[tuple[Part, float, Quantize]] = [
        (denoiser, denoiser.peaks[f"{rows} rows, 0 references"], runtime.quantize),
        *((encoder, max(encoder.peaks.values()), "none") for encoder in parts.encoders),  # type: ignore[list-item]
        (parts.codec, WORKSPACES * max(parts.codec.peaks.values()), "none"),
    ]
    always = CONTEXT_BYTES + PROMPTS_BYTES + HELD_SHARE * total
    if runtime.offload in {"none", "encoders"}:
        weights = device_bytes(parts.sizes(runtime.quantize), runtime.offload)
        return always + weights + max(peak for _, peak, _ in phases)
    return always + max(device_bytes({"": part.sizes(kind)}, runtime.offload) + peak for part, peak, kind in phases)


def tables() -> Iterable[Table]:
    """Return the table of cards, and that of the peaks of single calls."""
    names = [each.name for each in CHECKPOINTS]
    cards = Table("GPU", *names, title=TITLE)
    for card in CARDS:
        cards.add_row(card.name, *(str(choice(name, card)) for name in names))
    yield cards
    calls = Table("Call", *names, title="GiB beside the weights, for a megapixel (a step: bfloat16 / fp8)")
    for rows, references in ((1, 0), (4, 0), (1, 1), (1, 4)):
        call = f"{rows} rows, {references} references"
        calls.add_row(f"step: {call}", *(_steps(measured(name), call) for name in names))
    for kind in ("decode", "encode"):
        peaks = (measured(name).codec.peaks[kind] for name in names)
        calls.add_row(f"codec: {kind}", *(f"{peak / GIB:.1f}" for peak in peaks))
    yield calls


def _steps(parts: Measured, call: str) -> str:
    kinds: tuple[Quantize, ...] = ("none", "fp8")
    peaks = [parts.denoiser[kind].peaks.get(call) for kind in kinds]
    return " / ".join("-" if peak is None else f"{peak / GIB:.2f}" for peak in peaks)
