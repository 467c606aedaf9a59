"""What something costs the device, without waiting for it."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

import torch


class DeviceTimer:
    """Measures work in seconds: of a GPU by events, which are read once they have passed; of a CPU by what this process
    uses of its cores, which other programs on them hardly change."""

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event, Callable[[float], None]]] = deque()

    @contextlib.contextmanager
    def measure(self, report: Callable[[float], None]) -> Iterator[None]:
        """Measure the work that is launched inside. `report` gets the seconds: at the end on a CPU, else during a later
        call."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            began = time.process_time()
            yield
            report(time.process_time() - began)
            return
        self._report_passed()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        yield
        end.record()
        self._pending.append((start, end, report))

    def _report_passed(self) -> None:
        while self._pending and self._pending[0][1].query():  # type: ignore[no-untyped-call]
            start, end, report = self._pending.popleft()
            report(start.elapsed_time(end) / 1000)
