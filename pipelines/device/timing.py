"""The time of a device on which kernels are launched asynchronously: how far it is, and what something costs it."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

import torch


class CudaTimeline:
    """Follows the GPU by events, which it passes after the work that was launched before them."""

    def __init__(self) -> None:
        self._launched: deque[torch.cuda.Event] = deque()

    def catch_up(self) -> None:
        """Block until at most one turn is queued on the GPU."""
        self._launched.append(torch.cuda.current_stream().record_event())
        if len(self._launched) > 1:
            self._launched.popleft().synchronize()

    def mark(self) -> Callable[[], None]:
        """Mark the work that has been launched, and return a function that blocks until the GPU has computed it."""
        event: torch.cuda.Event = torch.cuda.current_stream().record_event()
        return event.synchronize


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
