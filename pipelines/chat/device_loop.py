"""The thread that computes. Sequences come in from the event loop; every checkpoint with work takes a step in turn."""

import queue
import threading

import torch

from pipelines.chat.batch import Batch
from pipelines.chat.checkpoint import ChatCheckpoint
from pipelines.chat.forward import batched_token_bytes
from pipelines.chat.request import Sequence
from pipelines.chat.solo import Solo
from pipelines.chat_types import ChatSpec
from pipelines.openmp import let_helpers_go
from pipelines.outcomes import is_out_of_memory
from pipelines.residency import free_memory


class DeviceLoop:
    """Owns every batch. `add` may be called from any thread."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._threads = torch.get_num_threads()  # before any checkpoint has asked for fewer
        self._inbox: queue.SimpleQueue[list[Sequence]] = queue.SimpleQueue()
        self._batches: dict[ChatCheckpoint, Batch] = {}
        self._solos: dict[ChatCheckpoint, Solo] = {}
        self._kept: frozenset[ChatSpec] | None = None  # None until the catalog has changed
        threading.Thread(target=self._run, name="chat", daemon=True).start()

    def add(self, sequences: list[Sequence]) -> None:
        """The choices of one request."""
        self._inbox.put(sequences)

    def keep(self, specs: frozenset[ChatSpec]) -> None:
        """Those of other checkpoints go, with the weights, once they are idle."""
        self._kept = specs
        self._inbox.put([])  # looks around

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            idle = all(batch.idle for batch in self._batches.values())
            if idle:
                let_helpers_go()
            self._receive(wait=idle)
            for batch in self._batches.values():
                if not batch.idle:
                    self._step(batch)

    def _receive(self, *, wait: bool) -> None:
        while wait or not self._inbox.empty():
            for sequence in self._inbox.get():
                self._lane(sequence.request.checkpoint).add(sequence)
            if (kept := self._kept) is not None:
                self._let_go(kept)
            wait = all(batch.idle for batch in self._batches.values())

    def _lane(self, checkpoint: ChatCheckpoint) -> Batch | Solo:
        """Where its sequences go. Made when the first one comes."""
        if checkpoint not in self._batches and checkpoint not in self._solos:
            token_bytes = None if checkpoint.processor else batched_token_bytes(checkpoint)
            if token_bytes:
                self._batches[checkpoint] = Batch(checkpoint, self._budget_bytes // token_bytes)
            else:
                self._solos[checkpoint] = Solo(checkpoint, self._threads)
        return self._batches.get(checkpoint) or self._solos[checkpoint]

    def _let_go(self, kept: frozenset[ChatSpec]) -> None:
        self._batches = {c: batch for c, batch in self._batches.items() if c.spec in kept or not batch.idle}
        for checkpoint in [checkpoint for checkpoint in self._solos if checkpoint.spec not in kept]:
            self._solos.pop(checkpoint).end()

    def _step(self, batch: Batch) -> None:
        try:
            batch.step(self._threads)
        except Exception as error:
            if is_out_of_memory(error) and batch.halve():
                free_memory(batch.checkpoint.device)
            else:
                batch.fail(error)
