"""Decode steps as CUDA graphs: launching a step kernel by kernel takes the host ten times as long as the GPU computes.

A graph repeats what was launched once, with the same shapes and places. So a step has a shape, of rows and pages that
are rounded up, and its inputs lie where its graph reads them. Rows beyond those asked for repeat the last one, and
write what it writes. A shape is captured when it comes for the second time; a graph is of no use once the buffers of
the KV cache have moved.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch

from pipelines.chat.model.kv_cache import Bounds, KVCache, RowGroup, page_table
from pipelines.chat.model.kv_pages import PAGE, Lease
from pipelines.device.failures import clear_frames, first_line, is_device_error, is_out_of_memory, is_responsive
from pipelines.device.graph_capture import CAPTURES, Capture, free_failed

MOST_GRAPHS: Final = 48  # that are kept; the next one begins anew
LAYER_BYTES: Final = 2**17  # of a graph that a driver keeps for a layer: its launches and their arguments
MOST_SHAPES: Final = 4096  # that are counted
RETRIED_AFTER: Final = 256  # steps of a shape whose graph has found no memory
FEWEST_PAGES: Final = 8  # of a row
MOST_GATHERED_BYTES: Final = 2**29  # of one layer: a step over more keeps the GPU busy by itself

Shape = tuple[tuple[int, int], ...]  # rows and pages of each group


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One token of each row: its number, its position and where it goes, all [rows]; and what rows attend to."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    groups: tuple[RowGroup, ...]
    start: int  # tokens before that of the longest row


Rows = tuple[Sequence[int], Sequence[int], Sequence[int]]  # their ids, positions and slots
Decode = Callable[[StepInputs], torch.Tensor]  # to logits [rows, vocabulary]


def graph_bytes(layers: int, rows: int, vocab_size: int) -> int:
    """Return what the graphs of a model may need beside its buffers: what a driver keeps of them, the keys and values
    of one layer, and the logits of all rows before and after they are copied."""
    return MOST_GRAPHS * layers * LAYER_BYTES + MOST_GATHERED_BYTES + 2 * rows * vocab_size * 4


class DecodeGraphs:
    """The captured steps of one model. One thread uses it, and reads a step's logits before the next step."""

    def __init__(self, decode: Decode, kv_cache: KVCache, device: torch.device) -> None:
        self._run, self._kv_cache, self._device = decode, kv_cache, device
        self._steps: dict[Shape, _CapturedStep] = {}
        self._asked: Counter[Shape] = Counter()
        self._logits: dict[int, torch.Tensor] = {}  # by rows; steps of as many rows share them
        self._capture: Capture | None = None
        kv_cache.before_move = self._clear
        self._refused = False  # once a step could not be captured

    @property
    def is_empty(self) -> bool:
        """Return whether no step is captured."""
        return not self._steps

    def give_up(self) -> bool:
        """Free the memory of all graphs, and capture no such step for a while. False if there are none."""
        held = bool(self._steps)
        for shape in self._steps:
            self._asked[shape] = -RETRIED_AFTER
        self._clear()
        return held

    def decode(self, rows: Rows, leases: Sequence[Lease], bounds: Sequence[Bounds]) -> torch.Tensor | None:
        """Return the logits of a step whose rows are in these groups, or None: it is not captured."""
        if self._refused:
            return None
        shape = _shape(rows, bounds)
        step = self._steps.get(shape) or self._captured(shape, rows, leases, bounds)
        if step is None:
            return None
        return step.replay(rows, leases, bounds)

    def _captured(
        self, shape: Shape, rows: Rows, leases: Sequence[Lease], bounds: Sequence[Bounds]
    ) -> "_CapturedStep | None":
        if not self._is_due(shape):
            return None
        if len(self._steps) >= MOST_GRAPHS:
            self._clear()  # one alone can't be freed
        capture = self._capture = self._capture or CAPTURES[self._device.type]()
        try:
            step = _CapturedStep(shape, self._device)
            step.fill(rows, leases, bounds)
            step.capture(self._run, capture, self._logits)
        except RuntimeError as error:
            self._clear()
            if is_device_error(error) and not is_responsive(self._device):
                raise
            clear_frames(error)
            free_failed(capture)
            if is_out_of_memory(error):
                self._asked[shape] = -RETRIED_AFTER  # a step that is launched may have room
                return None
            self._refused = True
            why = first_line(error)
            print(f"Decode steps are launched kernel by kernel, as they can't be captured: {why}", file=sys.stderr)
            return None
        self._steps[shape] = step
        return step

    def _is_due(self, shape: Shape) -> bool:
        """Return whether a shape has come before, and is not so large that the GPU waits for nobody."""
        if len(self._asked) > MOST_SHAPES:
            self._asked.clear()
        self._asked[shape] += 1
        gathered = sum(rows * pages for rows, pages in shape) * PAGE * self._kv_cache.layer_token_bytes()
        return self._asked[shape] > 1 and 0 < gathered <= MOST_GATHERED_BYTES

    def _clear(self) -> None:
        self._steps.clear()
        self._logits.clear()
        self._capture = None


class _CapturedStep:
    """A step of one shape. Its inputs are one tensor, so that one copy fills all of them."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._shape = shape
        count = sum(rows for rows, _ in shape)
        sizes = [count, count, count, *(rows * pages for rows, pages in shape)]
        self._values = torch.zeros(sum(sizes), dtype=torch.long, device=device)
        ids, positions, slots, *tables = torch.split(self._values, sizes)
        firsts = [*accumulate((rows for rows, _ in shape), initial=0)]
        groups = tuple(
            RowGroup(first, first + rows, pages * PAGE, table)
            for first, (rows, pages), table in zip(firsts, shape, tables, strict=False)
        )
        self._inputs = StepInputs(ids, positions, slots, groups, start=0)

    def fill(self, rows: Rows, leases: Sequence[Lease], bounds: Sequence[Bounds]) -> None:
        """Put the inputs where the graph reads them."""
        padded = [[*range(first, end), *[end - 1] * (most - (end - first))]
                  for (first, end), (most, _) in zip(bounds, self._shape, strict=True)]  # fmt: skip
        values = [each[row] for each in rows for group in padded for row in group]
        for group, (_, pages) in zip(padded, self._shape, strict=True):
            values += page_table([leases[row] for row in group], pages)
        self._values.copy_(torch.tensor(values))

    def capture(self, decode: Decode, capture: Capture, kept: dict[int, torch.Tensor]) -> None:
        """Capture the step for the inputs that it has; its logits go to those that are kept for as many rows."""
        count = len(self._inputs.ids)

        def run() -> None:
            logits = decode(self._inputs)
            if count not in kept:
                kept[count] = torch.empty_like(logits)
            kept[count].copy_(logits)

        self._replay = capture(run)
        self._logits = kept[count]

    def replay(self, rows: Rows, leases: Sequence[Lease], bounds: Sequence[Bounds]) -> torch.Tensor:
        """Return the logits [rows, vocabulary]. The next step overwrites them."""
        self.fill(rows, leases, bounds)
        self._replay()
        asked = [self._logits[group.first : group.first + end - first]
                 for group, (first, end) in zip(self._inputs.groups, bounds, strict=True)]  # fmt: skip
        return asked[0] if len(asked) == 1 else torch.cat(asked)


def _shape(rows: Rows, bounds: Sequence[Bounds]) -> Shape:
    """Return the shape of a step, rounded up so that rows that grow, come and go keep it for a while."""
    _, positions, _ = rows
    return tuple(
        (_captured_rows(end - first), max(FEWEST_PAGES, _captured_rows(positions[first] // PAGE + 1)))
        for first, end in bounds
    )


def _captured_rows(count: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power > 2 and count <= power * 3 // 4 else power
