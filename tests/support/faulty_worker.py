"""A worker whose device fails as a GPU does: `python -m tests.support.faulty_worker`, in place of pipelines.worker.

A classifier's text injects the error where a kernel would raise it; the seam below is what asks the device.
"""

from collections.abc import Callable
from typing import Any

import torch

from pipelines import worker
from pipelines.classify.engine import Classifier
from pipelines.device import failures
from pipelines.images.parallel.group import Group

STICKY = "CUDA error: an illegal memory access was encountered"
PASSING = "CUDA error: invalid configuration argument"
GROUP_NO_MEMORY = "one process of a group has no memory"
NO_MEMORY = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"

_lost = False
_score_text: Callable[[Any, str], dict[str, float]] = Classifier.score_text
_answers = failures.is_responsive


def _fail_on_purpose(self: Classifier, text: str) -> dict[str, float]:
    global _lost
    if text in {STICKY, PASSING, NO_MEMORY}:
        _lost = _lost or text == STICKY
        raise torch.AcceleratorError(text)
    if text == GROUP_NO_MEMORY:
        Group(torch.device("cpu"), 2).end("it ran out of memory alone", True)
    if _lost:
        raise torch.AcceleratorError(STICKY)  # as every call after a sticky error
    return _score_text(self, text)


def main() -> None:
    Classifier.score_text = _fail_on_purpose  # type: ignore[method-assign]
    failures.is_responsive = lambda device: not _lost and _answers(device)
    worker.main()


if __name__ == "__main__":
    main()
