"""Capturing what a GPU was told to do as a CUDA graph: one launch repeats it, with the same shapes and places."""

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar, Final

import torch

Run = Callable[[], None]
Capture = Callable[[Run], Run]  # to what repeats it; RuntimeError where it can't be captured

STREAMS: Final = 32  # that torch hands out, of a device and a priority


class CudaCapture:
    """Captures runs as CUDA graphs, which share the memory of their intermediate results: they follow each other. Torch
    frees that memory with the last of them, after which no other can join it.

    With any graph torch also frees what cuBLAS works in on the stream that it was captured on, in which other graphs of
    that stream would go on working: so all graphs of a capture are dropped at once, and no two captures share a stream.
    """

    _alive: ClassVar["weakref.WeakSet[CudaCapture]"] = weakref.WeakSet()

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # torch hands its streams out in turn, again and again: one of this priority is no stream that weights are
        # copied by meanwhile, which would be captured too
        taken = {each._stream.cuda_stream for each in self._alive}
        for _ in range(STREAMS):
            self._stream: torch.cuda.Stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
            if self._stream.cuda_stream not in taken:
                break
        self._alive.add(self)
        self._failed = 0  # runs whose capture did not end well

    def __call__(self, run: Run) -> Run:
        """Run it twice: libraries choose kernels and make workspaces at the first time, which no graph may contain."""
        here, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        self._stream.wait_stream(here)
        try:
            with torch.cuda.stream(self._stream):
                run()
                self._failed += 1
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    run()
                finally:
                    graph.capture_end()
                    self._failed -= 1
        except BaseException:
            graph.reset()
            raise
        finally:
            here.wait_stream(self._stream)  # also for what a run that fails has written
        return partial(self._repeat, graph)  # which keeps its stream, too

    def free(self) -> None:
        """Give back what runs have left that could not be captured, once all graphs of this capture are dropped. Torch
        2.13 keeps that memory for good, newer ones may not."""
        while self._failed:
            self._failed -= 1
            torch.cuda.empty_cache()
            if torch.cuda.memory_snapshot(self._pool):  # type: ignore[no-untyped-call]  # torch has no types for it
                with suppress(RuntimeError):  # by a torch that has released it, if something is still in use there
                    torch._C._cuda_releasePool(self._stream.device_index, self._pool)
                torch.cuda.empty_cache()

    def _repeat(self, graph: torch.cuda.CUDAGraph) -> None:
        graph.replay()


CAPTURES: Final[dict[str, Callable[[], Capture]]] = {"cuda": CudaCapture}  # by kind of device


def free_failed(capture: Capture) -> None:
    """Give back the memory of what could not be captured, once all graphs of this capture are dropped."""
    if isinstance(capture, CudaCapture):
        capture.free()
