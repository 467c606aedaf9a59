"""A denoiser's forward passes as CUDA graphs: launching thousands of small kernels takes the host longer than a GPU
needs to compute them, at 512 px on any machine. A graph is one launch, and gives the same bits. So do the kernels in
which it computes small operations that follow each other (pipelines.device.fusion).

A graph repeats what was launched once, with the same shapes and places: it belongs to a form, which is the arguments'
shapes and plain values. Its inputs are copied to where it reads them. It is of no use once weights have moved, or
adapters have changed.
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from pipelines.device.failures import clear_frames, first_line, is_device_error, is_out_of_memory, is_responsive
from pipelines.device.fusion.fuser import FUSERS, Fuser, Fusion
from pipelines.device.fusion.program import Program, same_bits
from pipelines.device.graph_capture import CAPTURES, Capture, Run, free_failed

MOST_GRAPHS: Final = 24  # of a checkpoint; the next one begins anew, as one alone can't be freed
MOST_FORMS: Final = 1024  # that are counted
CAPTURED_AT: Final = 12  # passes of a form: capturing costs a pass, which a form that does not come again never repays
RETRIED_AFTER: Final = 512  # passes of a form whose graph has found no memory

Form = Hashable
Forward = Callable[..., Any]


class Uncapturable(Exception):
    """The arguments have a form that a graph can't have."""


class PassGraphs:
    """The captured passes of one denoiser, for the runs that take turns in it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._fuser: Fuser | None = FUSERS[device.type](device) if device.type in FUSERS else None
        self._passes: dict[Form, _CapturedPass] = {}
        self._due: dict[Form, _DuePass] = {}  # whose operations are being fused
        self._asked: Counter[Form] = Counter()
        self._capture: Capture | None = None
        self._state: object = None
        self._unwanted = False
        self.refused: str | None = None  # why the denoiser's passes can't be captured

    def clear(self) -> None:
        """Drop all graphs, and free their memory, of a denoiser that no run uses."""
        self._passes.clear()
        self._due.clear()
        self._capture = None  # no graph can join a pool that is freed

    def clear_at_next_pass(self) -> None:
        """Drop all graphs before another pass is computed: one may be at work."""
        self._unwanted = True

    def require(self, state: object) -> None:
        """Drop all graphs before the next pass if what changes the denoiser, such as adapters, is not what they were
        captured with."""
        if state != self._state:
            self._state = state
            self.clear_at_next_pass()

    def compute(self, forward: Forward, arguments: Mapping[str, Any]) -> Any:
        """Return the output of a pass, by its graph if there is one."""
        if self._unwanted:
            self._unwanted = False
            self._clear_between_passes()
        if self.refused is not None:
            return forward(**arguments)
        leaves, spec = tree_flatten(dict(arguments))
        try:
            form = _form(leaves, spec, self._device)
        except Uncapturable:
            return forward(**arguments)
        captured = self._passes.get(form)
        if captured is None and self._is_due(form):
            due = self._due.get(form)
            if due is None and (fuser := self._fuser) is not None and fuser.refused is None:
                due = _DuePass(forward, leaves, spec)
                output = self._launched(lambda **_: due.record(fuser), leaves, spec)
                self._due[form] = due
                return output
            captured = self._captured(form, due or _DuePass(forward, leaves, spec), leaves)
        if captured is None:
            return self._launched(forward, leaves, spec)
        return captured.replay(leaves)

    def _launched(self, forward: Forward, leaves: list[Any], spec: TreeSpec) -> Any:
        """Compute kernel by kernel, again without graphs if their memory is missing. UNets empty the lists that they
        are given."""
        try:
            return forward(**tree_unflatten(leaves, spec))
        except Exception as error:
            if not self._passes or not is_out_of_memory(error):
                raise
            clear_frames(error)
        self._give_up()
        return forward(**tree_unflatten(leaves, spec))

    def _is_due(self, form: Form) -> bool:
        if len(self._asked) > MOST_FORMS:
            self._asked.clear()
        self._asked[form] += 1
        return self._asked[form] >= CAPTURED_AT

    def _give_up(self) -> None:
        for form in self._passes:
            self._asked[form] = CAPTURED_AT - RETRIED_AFTER
        self._clear_between_passes()

    def _clear_between_passes(self) -> None:
        if self._passes and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the last pass may be at work in the memory that this frees
        self.clear()

    def _captured(self, form: Form, due: "_DuePass", leaves: list[Any]) -> "_CapturedPass | None":
        """Capture a pass; None while its kernels are compiled, and if it can't be captured."""
        if due.fusion is not None and due.fusion.is_building:
            return None
        if len(self._passes) >= MOST_GRAPHS:
            self._clear_between_passes()
        capture = self._capture = self._capture or CAPTURES[self._device.type]()
        try:
            due.fill(leaves)
            program = None if due.fusion is None else due.fusion.program()
            if due.fusion is not None and due.fusion.is_building:
                return None  # others, without what has given other bits
            captured = _CapturedPass(due, capture, program)
            if program is not None and self._fuser is not None and not captured.is_same:
                self._fuser.refuse("a pass of fused operations has other bits")
                captured = _CapturedPass(due, capture, None)
        except RuntimeError as error:
            if is_device_error(error) and not is_responsive(self._device):
                raise
            clear_frames(error)
            self._give_up()
            free_failed(capture)
            self._asked[form] = CAPTURED_AT - RETRIED_AFTER
            if not is_out_of_memory(error):
                self._refuse(first_line(error))
            return None
        if not captured.is_same:
            self._give_up()
            self._refuse("what a graph repeats has other bits")
            return None
        self._due.pop(form, None)
        self._passes[form] = captured
        return captured

    def _refuse(self, why: str) -> None:
        self.refused = why
        print(f"A denoiser's passes are launched kernel by kernel, as they can't be captured: {why}", file=sys.stderr)


class _DuePass:
    """A pass that has come so often that it shall be captured: its inputs lie where the graph will read them."""

    def __init__(self, forward: Forward, leaves: list[Any], spec: TreeSpec) -> None:
        self._forward = forward
        self._spec = spec
        self.inputs = [_place(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.fusion: Fusion | None = None
        self.fill(leaves)

    def fill(self, leaves: list[Any]) -> None:
        """Compute with these inputs from now on."""
        _fill(self.inputs, leaves)

    def record(self, fuser: Fuser) -> Any:
        """Return the output, and begin to fuse the operations that compute it."""
        output, self.fusion = fuser.record(self.compute)
        return output

    def compute(self) -> Any:
        """Return the output, operation by operation."""
        return self._forward(**tree_unflatten(self.inputs, self._spec))


class _CapturedPass:
    """A pass of one form, as it is or by a program, which has to have the same bits. The graph writes its output where
    it lies."""

    def __init__(self, due: _DuePass, capture: Capture, program: Program | None) -> None:
        self._inputs = due.inputs
        self._program = program  # which has what it takes
        compute = due.compute if program is None else program.run
        # What the pass takes beside its arguments: a cache of the library's may let go of it, also of what it made at
        # the first run and takes at the second.
        self._read: list[torch.Tensor] = []
        first = [] if program is None else tree_flatten(due.compute())[0]
        self._outputs: list[Any] = []

        def run() -> None:
            with _Read() as reading:
                made, self._spec = tree_flatten(compute())
            reading.require_places()
            self._read += reading.tensors
            if not first:
                first.extend(made)
            if not self._outputs:
                self._outputs = [torch.empty_like(each) if isinstance(each, torch.Tensor) else each for each in made]
            _fill(self._outputs, made)

        self._replay: Run = capture(run)
        self._replay()
        self.is_same = all(map(same_bits, first, self._outputs))

    def replay(self, leaves: list[Any]) -> Any:
        """Return the output for these arguments, in memory of its own."""
        _fill(self._inputs, leaves)
        self._replay()
        return tree_unflatten(
            [each.clone() if isinstance(each, torch.Tensor) else each for each in self._outputs], self._spec
        )


def _place(leaf: torch.Tensor) -> torch.Tensor:
    """Return memory for a tensor with its strides, by which libraries choose kernels, and so the bits."""
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)


def _fill(places: Iterable[Any], values: Iterable[Any]) -> None:
    for place, value in zip(places, values, strict=True):
        if isinstance(place, torch.Tensor):
            repeated = [dim for dim, stride in enumerate(place.stride()) if stride == 0]  # an expanded tensor's
            for dim in repeated:
                place, value = place.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
            place.copy_(value)


class _Read(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the tensors that operations take and that none of them has made, and where they were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._taken: dict[int, tuple[torch.Tensor, StorageWeakRef]] = {}
        self._made: set[int] = set()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Return what was taken."""
        return [tensor for tensor, _ in self._taken.values()]

    def require_places(self) -> None:
        """Raise RuntimeError if the pass has moved what it takes, as weights that are kept in float8 and cast for each
        pass: a graph would read where they were."""
        if any(tensor.untyped_storage()._cdata != place.cdata for tensor, place in self._taken.values()):
            raise RuntimeError("a pass moves its weights")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in tree_flatten((args, kwargs or {}))[0]:
            if isinstance(each, torch.Tensor) and id(each) not in self._made and id(each) not in self._taken:
                self._taken[id(each)] = each, StorageWeakRef(each.untyped_storage())  # type: ignore[no-untyped-call]
        result = func(*args, **(kwargs or {}))
        self._made |= {id(each) for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)}
        return result


def _form(leaves: list[Any], spec: TreeSpec, device: torch.device) -> Form:
    """Return what a graph is bound to. Raises Uncapturable for values of the host's that may differ without its being
    seen."""

    def form(leaf: Any) -> Hashable:
        if isinstance(leaf, torch.Tensor):
            if leaf.device.type != device.type:
                raise Uncapturable
            return leaf.dtype, leaf.shape, leaf.stride()
        if leaf is None or isinstance(leaf, bool | int | float | str | torch.dtype | torch.device):
            return type(leaf), leaf
        raise Uncapturable

    return tuple(map(form, leaves)), spec
