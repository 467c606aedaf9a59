"""What a CUDA graph does, on a CPU: a run's operations are recorded once, and repeated on the same places, whatever
Python would do by then. What a graph can't contain is refused in the driver's words."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

READS = ("_local_scalar_dense", "nonzero", "unique", "masked_select")  # by the host, or results whose size depends


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation: what it is, what it takes, and where its results go."""

    at_work: ClassVar["Recorder | None"] = None

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[tuple[Callable[..., Any], list[Any], Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in READS):
            raise RuntimeError(f"{func}: operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        leaves, spec = tree_flatten((args, kwargs or {}))
        results = [each for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)]
        self.steps.append((func, leaves, spec, results))
        return result

    def note(self, launch: Callable[..., None], *tensors: torch.Tensor) -> None:
        """Note a kernel that is no operation of torch."""
        self.steps.append((launch, *tree_flatten((tensors, {})), []))

    def repeat(self) -> None:
        """Do it all again. Results of the recorded run that other operations took are replaced by those of now."""
        now: dict[int, torch.Tensor] = {}
        for func, leaves, spec, results in self.steps:
            args, kwargs = tree_unflatten([now.get(id(leaf), leaf) for leaf in leaves], spec)
            made = [each for each in tree_flatten(func(*args, **kwargs))[0] if isinstance(each, torch.Tensor)]
            now |= {id(old): new for old, new in zip(results, made, strict=True)}


class Captures:
    """Captures by recording, and counts."""

    def __init__(self) -> None:
        self.made = self.repeated = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        with Recorder() as recorder:
            Recorder.at_work = recorder
            try:
                run()
            finally:
                Recorder.at_work = None
        self.made += 1

        def repeat() -> None:
            self.repeated += 1
            recorder.repeat()

        return repeat
