"""The timeline of a GPU, on which kernels are launched asynchronously."""

from collections import deque
from collections.abc import Callable

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
