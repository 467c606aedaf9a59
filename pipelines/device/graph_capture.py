"""Capturing what a GPU was told to do as a CUDA graph: one launch repeats it, with the same shapes and places."""

from collections.abc import Callable
from typing import Final

import torch

Run = Callable[[], None]
Capture = Callable[[Run], Run]  # to what repeats it; RuntimeError where it can't be captured


class CudaCapture:
    """Captures runs as CUDA graphs, which share the memory of their intermediate results: they follow each other. Torch
    frees that memory with the last of them, after which no other can join it."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # torch hands its streams out in turn, again and again: one of this priority is no stream that weights are
        # copied by meanwhile, which would be captured too
        self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]

    def __call__(self, run: Run) -> Run:
        """Run it twice: libraries choose kernels and make workspaces at the first time, which no graph may contain."""
        here, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            run()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        here.wait_stream(self._stream)
        return graph.replay


CAPTURES: Final[dict[str, Callable[[], Capture]]] = {"cuda": CudaCapture}  # by kind of device
