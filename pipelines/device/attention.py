"""Attention by the kernel that is fastest here among those that are right, found by trying.

torch chooses among its kernels by fixed rules, knows none of other packages, and some kernels have been wrong on some
chips. So the first call of each shape is computed by every kernel that is installed, on its own tensors: those that
differ from plain arithmetic are named and never used, and the fastest of the others answers from then on. All that
computes attention by torch.nn.functional.scaled_dot_product_attention is served: denoisers, text encoders, codecs.

The choices are kept on disk, by device and versions, so that a seed draws the same bits after a restart.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import torch

from pipelines.device.attention_kernels import (
    TOLERANCE,
    AttentionCall,
    Kernel,
    by_torch,
    installed_kernels,
    plain_torch,
    worst_error,
)
from pipelines.device.failures import first_line, is_out_of_memory, require_device
from pipelines.device.software import describe_device, library_versions

TORCH: Final = "torch"  # the kernel that torch chooses
LAST_RESORT: Final = "math"  # slow, and right wherever torch's products are
WRONG: Final = "differs from plain arithmetic"
TRIED_FLOP: Final = 1e9  # of a call; smaller ones take microseconds by any kernel
TRIAL_S: Final = 0.02  # for which each kernel is timed
MOST_TIMES: Final = 2000
GAIN: Final = 0.97  # part of torch's time that another kernel may take to be chosen: less is noise
TILE: Final = 64  # tokens that kernels take at a time
MOST_TRIALS: Final = 3  # of a shape from which nothing was learnt

Trying = Callable[[str], contextlib.AbstractContextManager[None]]  # what keeps a file while a kernel is tried

_named = threading.local()


class Shape(NamedTuple):
    """What decides which kernel is fastest: tokens as powers of two, and not how many images share the call, so that an
    image is computed alike alone and beside others."""

    dtype: torch.dtype
    heads: int
    key_heads: int
    size: int
    value_size: int
    tokens_log2: int
    keys_log2: int
    mask: torch.dtype | None
    causal: bool

    @classmethod
    def of(cls, call: AttentionCall) -> "Shape":
        """Return the shape of a call."""
        _, heads, tokens, size = call.query.shape
        _, key_heads, keys, value_size = call.value.shape
        mask = None if call.mask is None else call.mask.dtype
        bits = (tokens - 1).bit_length(), (keys - 1).bit_length()
        return cls(call.query.dtype, heads, key_heads, size, value_size, *bits, mask, call.causal)

    def __str__(self) -> str:
        heads = f"{self.heads} heads" if self.heads == self.key_heads else f"{self.heads} heads on {self.key_heads}"
        size = str(self.size) if self.size == self.value_size else f"{self.size} and {self.value_size}"
        more = [] if self.mask is None else [f"a mask of {str(self.mask).removeprefix('torch.')}"]
        more += ["causal"] if self.causal else []
        tokens = f"up to {1 << self.tokens_log2} x {1 << self.keys_log2} tokens"
        return ", ".join([str(self.dtype).removeprefix("torch."), f"{heads} of {size}", tokens, *more])


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel that answers calls of one shape; milliseconds by kernel, and why others are never used."""

    kernel: str
    times_ms: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> dict[str, str]:
        """Return the kernels that gave wrong numbers, with what was wrong."""
        return {name: why for name, why in self.refused.items() if why.startswith(WRONG)}


class AttentionChooser:
    """Answers calls of attention. `seconds_of` measures a kernel."""

    def __init__(
        self,
        device: torch.device,
        records: "ChoiceRecords",
        kernels: Mapping[str, Kernel] | None = None,
        seconds_of: Callable[[Callable[[], object]], float] | None = None,
    ) -> None:
        self._device = device
        self._index = -1 if device.type == "cpu" else torch.empty(0, device=device).get_device()
        self._records = records
        self._kernels = {TORCH: by_torch, **(installed_kernels() if kernels is None else kernels)}
        self._seconds_of = seconds_of or _seconds_of
        self._undecided: Counter[Shape] = Counter()
        self._checked: set[Hashable] = set()
        self.choices: dict[Shape, Choice] = {}

    def __call__(  # noqa: PLR0913 - torch's own
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Compute torch.nn.functional.scaled_dot_product_attention by the chosen kernel."""
        if dropout_p or torch.compiler.is_compiling() or not self._decides(query, key, value, is_causal):
            return plain_torch(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        call = AttentionCall(query, key, value, attn_mask, is_causal, scale, enable_gqa)
        shape = Shape.of(call)
        choice = self.choices.get(shape) or self._find(shape, call)
        kernel = self._kernels.get(choice.kernel, by_torch)
        if kernel is by_torch:
            return by_torch(call)
        try:
            output = kernel(call)
            why = self._fault(shape, call, output)
        except Exception as error:  # such as for strides that the first call had not
            require_device(error, self._device)
            why = f"refused a later call: {first_line(error)}"
        if why is None:
            return output
        self._settle(shape, Choice(TORCH, choice.times_ms, {**choice.refused, choice.kernel: why}))
        return by_torch(call)

    def notes(self) -> tuple[str, ...]:
        """Return what was found so far, for the operator."""
        counts = Counter(choice.kernel for choice in self.choices.values())
        found = [f"attention by {name} for {count} of {counts.total()} shapes" for name, count in counts.most_common()]
        wrong = {name: why for choice in self.choices.values() for name, why in choice.wrong.items()}
        never = [f"attention by {name} is wrong here ({why}) and not used" for name, why in wrong.items()]
        return (*(found if len(counts) > 1 or TORCH not in counts else ()), *never)

    def _decides(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool) -> bool:
        if getattr(_named, "here", False) or torch.is_grad_enabled() or query.dtype not in TOLERANCE:
            return False
        if query.dim() != 4 or query.get_device() != self._index:
            return False  # events of another device would time nothing
        batch, heads, tokens, size = query.shape
        if query.shape[:1] != key.shape[:1] or key.shape[:3] != value.shape[:3]:
            return False  # torch repeats them; operators called by name don't
        if causal and query.shape[2] != key.shape[2]:
            return False  # torch's mask begins at the first token and flash-attn's ends at the last
        # cuDNN has been wrong for few heads of keys, as language models have them, for short prompts too
        return heads != key.shape[1] or 4.0 * batch * heads * tokens * key.shape[2] * size >= TRIED_FLOP

    def _fault(self, shape: Shape, call: AttentionCall, output: torch.Tensor) -> str | None:
        """Return what is wrong with an output, of the first call of each layout: kernels have been wrong for an odd
        last tile, and for keys that are expanded, alone. Blocks then."""
        layout = shape, _layout(call)
        if layout in self._checked or (call.query.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        if not _is_finite(call):
            return None
        try:
            error = worst_error(call, output)
        except Exception as failure:
            if not is_out_of_memory(failure):
                raise
            return None  # the next call of this layout is compared
        self._checked.add(layout)
        return None if error <= TOLERANCE[call.query.dtype] else f"{WRONG} by {error:.2g} of the norm"

    def _find(self, shape: Shape, call: AttentionCall) -> Choice:
        """Return the choice that was kept, or try all kernels on this call. Where nothing can be learnt, as of tensors
        of no numbers, without memory to compare, or within a graph, the call is torch's. Blocks."""
        if kept := self._records.read(shape):
            self.choices[shape] = kept
            return kept
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return Choice(TORCH)
        try:
            found = self._compare(call, self._records.crashed(shape), partial(self._records.trying, shape))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            found = None
        if found is not None:
            return self._settle(shape, self._records.read(shape) or found)  # another worker may have been faster
        self._undecided[shape] += 1
        if self._undecided[shape] >= MOST_TRIALS:
            self.choices[shape] = Choice(TORCH)
        return Choice(TORCH)

    def _compare(self, call: AttentionCall, refused: dict[str, str], trying: Trying) -> Choice | None:
        """Hold each kernel against plain arithmetic, and time those that are right; None if nothing was learnt."""
        if not _is_finite(call):
            return None
        seconds: dict[str, float] = {}
        for name, kernel in self._kernels.items():
            if name in refused or (name == LAST_RESORT and seconds):
                continue
            try:
                with contextlib.nullcontext() if name == TORCH else trying(name):
                    error = worst_error(call, kernel(call))
                    if error <= TOLERANCE[call.query.dtype]:
                        seconds[name] = self._seconds_of(partial(kernel, call))
                    else:
                        refused[name] = f"{WRONG} by {error:.2g} of the norm"
            except Exception as failure:
                require_device(failure, self._device)
                refused[name] = first_line(failure)
        if not seconds:
            return None
        best = min(seconds, key=seconds.__getitem__)
        if TORCH in seconds and seconds[best] > GAIN * seconds[TORCH]:
            best = TORCH
        return Choice(best, {name: round(each * 1000, 4) for name, each in seconds.items()}, refused)

    def _settle(self, shape: Shape, choice: Choice) -> Choice:
        self._records.write(shape, choice)
        self.choices[shape] = choice
        for name, why in choice.wrong.items():
            print(f"Attention by {name} is never used for {shape}: it {why}", file=sys.stderr, flush=True)
        return choice


class ChoiceRecords:
    """The choices on disk: a file for each shape, in a folder of the device and versions that workers may share. What
    is being tried is written beforehand: a kernel that ends the process is not tried again."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, shape: Shape) -> Choice | None:
        """Return the choice for a shape; None if there is none that can be read."""
        if self._folder is None:
            return None
        path = self._path(shape)
        try:
            record = json.loads(path.read_text())
            return Choice(str(record["kernel"]), dict(record["times_ms"]), dict(record["refused"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{path} can't be read, so attention is tried anew: {error}", file=sys.stderr, flush=True)
            return None

    def write(self, shape: Shape, choice: Choice) -> None:
        """Write a choice. One that can't be written is tried anew at the next start."""
        if self._folder is None:
            return
        path = self._path(shape)
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"shape": str(shape), **asdict(choice)}, indent=1))
            part.replace(path)
        except OSError as error:
            print(f"{path} can't be written: {error}", file=sys.stderr, flush=True)

    def crashed(self, shape: Shape) -> dict[str, str]:
        """Return the kernels in whose trials a process has ended, with the reason to leave them out."""
        files = [] if self._folder is None else self._folder.glob(f"{self._path(shape).stem}.*.tried")
        return {file.suffixes[-2][1:]: "ended the process that tried it" for file in files if not _is_held(file)}

    @contextlib.contextmanager
    def trying(self, shape: Shape, kernel: str) -> Iterator[None]:
        """Keep a file, locked, while a kernel is tried: it is left behind by a process that ends in here alone."""
        if self._folder is None:
            yield
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = self._path(shape).with_suffix(f".{kernel}.tried").open("w")
        except OSError:  # a read-only home: nothing can be kept
            yield
            return
        with file:
            try:
                with contextlib.suppress(OSError):  # no locks in this filesystem: `_is_held` sees that, too
                    fcntl.flock(file, fcntl.LOCK_EX)
                yield
            finally:
                Path(file.name).unlink(missing_ok=True)

    def _path(self, shape: Shape) -> Path:
        assert self._folder is not None  # noqa: S101
        return self._folder / f"{hashlib.sha256(str(shape).encode()).hexdigest()[:24]}.json"


def _is_held(file: Path) -> bool:
    """Return whether a process that lives is trying this."""
    try:
        with file.open() as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def records_folder(folder: Path, device: torch.device) -> Path:
    """Return the folder of the choices that were made with this device and these versions."""
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    facts = json.dumps([describe_device(device), library_versions(), cudnn], sort_keys=True)
    return folder / "attention" / hashlib.sha256(facts.encode()).hexdigest()[:24]


def choose_attention(device: torch.device, records: Path | None) -> None:
    """Let torch's attention be computed by the kernel that is fastest on this GPU, from now on and in all of the
    process. On a CPU torch has one kernel."""
    if device.type == "cuda":
        folder = None if records is None else records_folder(records, device)
        torch.nn.functional.scaled_dot_product_attention = AttentionChooser(device, ChoiceRecords(folder))


def attention_identity() -> dict[str, str]:
    """Return the kernels that compute attention here beside torch's choice, for the file of an image."""
    chooser = torch.nn.functional.scaled_dot_product_attention
    kernels = {each.kernel for each in chooser.choices.values()} if isinstance(chooser, AttentionChooser) else set()
    return {"attention": ", ".join(sorted(kernels))} if kernels - {TORCH} else {}


def attention_notes() -> tuple[str, ...]:
    """Return what the trials of this process have found, for the operator."""
    chooser = torch.nn.functional.scaled_dot_product_attention
    return chooser.notes() if isinstance(chooser, AttentionChooser) else ()


@contextlib.contextmanager
def left_to_torch() -> Iterator[None]:
    """Leave the attention of this thread to torch, and to what a catalog file has chosen by name."""
    before = getattr(_named, "here", False)
    _named.here = True
    try:
        yield
    finally:
        _named.here = before


def _seconds_of(compute: Callable[[], object]) -> float:
    """Return what one computation takes on the GPU, over 20 ms of it. Blocks."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    compute()
    times = 1
    while True:
        start.record()
        for _ in range(times):
            compute()
        end.record()
        end.synchronize()
        seconds: float = start.elapsed_time(end) / 1000
        if seconds >= TRIAL_S or times >= MOST_TIMES:
            return seconds / times
        times = min(MOST_TIMES, max(2 * times, math.ceil(times * TRIAL_S / max(seconds, 1e-6))))


def _is_finite(call: AttentionCall) -> bool:
    return all(bool(each.isfinite().all()) for each in (call.query, call.key, call.value))


def _layout(call: AttentionCall) -> Hashable:
    """Return how full the last tiles are, and how the tensors lie in memory: what a kernel's cases depend on."""
    places = [
        tuple(
            (size == 1, stride == 0, stride % 8) for size, stride in zip(each.shape[1:], each.stride()[1:], strict=True)
        )
        for each in (call.query, call.key, call.value, call.mask)
        if each is not None
    ]
    return call.query.shape[2] % TILE, call.key.shape[2] % TILE, call.key.stride(0) == 0, *places
