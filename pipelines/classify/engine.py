"""Scores texts and images by label, with transformers' own classifiers, on one thread.

A text that is longer than the model's context is scored in overlapping windows, and each label's highest score counts:
a long beginning must not hide what follows it.
"""

import asyncio
import io
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from pipelines.device.failures import exit_if_lost, is_out_of_memory, watch_device
from pipelines.device.memory import copy_mapped_weights, free_memory, with_memory
from pipelines.device.staged_copy import move_modules
from pipelines.device.weight_names import load_model
from pipelines.protocol.classify import Classified, ClassifierSpec, ClassifyEvent, ClassifyJob
from pipelines.protocol.images import EncodedImage, Failed, Queued, RawImage, Started
from pipelines.protocol.pixels import flattened, to_image

HOST = torch.device("cpu")
MAX_WINDOW = 512  # tokens
OVERLAP = 0.25  # of a window
MAX_ROWS = 16  # windows or images in one forward pass


@dataclass(frozen=True, slots=True)
class Classifier:
    """A classifier's loaded checkpoint."""

    model: Any
    processor: Any  # a tokenizer for texts, an image processor for images
    device: torch.device
    notes: tuple[str, ...]  # on its files, for the operator

    def score(self, job: ClassifyJob) -> tuple[Mapping[str, float], ...]:
        """Return the scores by label of a job's texts, and then of its images, each from 0 to 1."""
        texts, images = map(self.score_text, job.texts), map(self.score_image, job.images)
        return (*texts, *images)

    def score_text(self, text: str) -> dict[str, float]:
        """Return each label's highest score over the text's windows."""
        window = min(MAX_WINDOW, self.processor.model_max_length, _positions(self.model.config))
        encoded = self.processor(
            text,
            truncation=True,
            max_length=window,
            stride=int(window * OVERLAP),
            return_overflowing_tokens=True,
            padding=True,
            return_tensors="pt",
        )
        encoded.pop("overflow_to_sample_mapping", None)
        rows = [
            self._forward({name: part[start : start + MAX_ROWS] for name, part in encoded.items()})
            for start in range(0, len(encoded["input_ids"]), MAX_ROWS)
        ]
        return self._by_label(torch.cat(rows).amax(dim=0))

    def score_image(self, image: RawImage | EncodedImage) -> dict[str, float]:
        """Return an image's scores by label, from 0 to 1."""
        encoded = self.processor(images=_to_image(image), return_tensors="pt")
        return self._by_label(self._forward(dict(encoded))[0])

    def _forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return scores of shape (rows, labels), 0 to 1."""
        with torch.inference_mode():
            logits: torch.Tensor = (
                self.model(**{name: part.to(self.device) for name, part in inputs.items()}).logits.float().cpu()
            )
        multi_label = self.model.config.problem_type == "multi_label_classification" or logits.shape[1] == 1
        return logits.sigmoid() if multi_label else logits.softmax(dim=1)

    def _by_label(self, scores: torch.Tensor) -> dict[str, float]:
        names: Mapping[int, str] = self.model.config.id2label
        return {names[index]: float(score) for index, score in enumerate(scores)}


class ClassifyEngine:
    """Loads each classifier once, and runs jobs in the order in which they come."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loaded: dict[ClassifierSpec, Classifier] = {}
        self._on_host: dict[ClassifierSpec, Classifier] = {}  # whose weights left the device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="classify")
        self._active: set[str] = set()

    async def prepare(self, spec: ClassifierSpec) -> tuple[str, ...]:
        """Load a classifier before the first job. Returns notes on its files. Raises CheckpointError, or transformers'
        errors for a broken folder."""
        return (await asyncio.get_running_loop().run_in_executor(self._thread, self._load, spec)).notes

    async def submit(self, job: ClassifyJob) -> AsyncIterator[ClassifyEvent]:
        """Queue a job, and yield `Queued`, `Started`, then `Classified` or `Failed`."""
        self._active.add(job.id)
        yield Queued()
        events: asyncio.Queue[ClassifyEvent] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        try:
            self._thread.submit(self._run, job, lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
            while isinstance(event := await events.get(), Started):
                yield event
            yield event
        finally:
            self._active.discard(job.id)

    def cancel(self, job_id: str) -> None:
        """Skip the job if it has not started."""
        self._active.discard(job_id)

    def _run(self, job: ClassifyJob, emit: Callable[[ClassifyEvent], object]) -> None:
        if job.id not in self._active:
            emit(Failed("cancelled", "The job was cancelled."))
            return
        classifier = None
        try:
            started_at = time.monotonic()
            classifier = self._load(job.checkpoint)
            emit(Started())  # the server's time limit begins here: it kills a worker that hangs
            scores = with_memory(self._device, classifier.score, job)
            emit(Classified(scores, time.monotonic() - started_at))
        except Exception as error:
            exit_if_lost(error, self._device)
            detail, message = (
                "".join(traceback.format_exception(error)),
                f"The classifier '{job.checkpoint.name}' failed.",
            )
            if classifier is not None or is_out_of_memory(error):
                emit(Failed("engine_failed", message, detail))
            else:
                emit(Failed("checkpoint_failed", message, f"{error}\n{detail}", movable="anywhere"))

    def unload_except(self, specs: Iterable[ClassifierSpec]) -> None:
        """Drop the other classifiers, after the jobs that are queued now."""
        self._thread.submit(self._drop_except, frozenset(specs))

    async def sleep(self) -> None:
        """Move all weights to the host's memory, after the jobs that are queued now."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._leave_device)

    def _drop_except(self, specs: frozenset[ClassifierSpec]) -> None:
        self._loaded = {spec: classifier for spec, classifier in self._loaded.items() if spec in specs}
        self._on_host = {spec: classifier for spec, classifier in self._on_host.items() if spec in specs}
        watch_device(self._device, free_memory, self._device)

    def _leave_device(self) -> None:
        self._on_host |= self._loaded
        self._loaded = {}
        watch_device(self._device, move_modules, [each.model for each in self._on_host.values()], HOST)
        watch_device(self._device, free_memory, self._device)

    def _load(self, spec: ClassifierSpec) -> Classifier:
        if (classifier := self._on_host.get(spec)) is not None:
            with_memory(self._device, move_modules, [classifier.model], self._device)
            self._loaded[spec] = self._on_host.pop(spec)
        if spec not in self._loaded:
            self._loaded[spec] = with_memory(self._device, load_classifier, spec, self._device)
        return self._loaded[spec]


def load_classifier(spec: ClassifierSpec, device: torch.device) -> Classifier:
    """Load a classifier, only from local safetensors, in float32. Raises CheckpointError for weights that are missing
    or have no place, and transformers' errors for a broken folder."""
    texts = spec.reads == "prompts"
    model_class: Any = AutoModelForSequenceClassification if texts else AutoModelForImageClassification
    processor: Any = AutoTokenizer if texts else AutoImageProcessor
    model, notes = load_model(model_class, spec.path, "model", dtype=torch.float32)
    reads = processor.from_pretrained(spec.path, local_files_only=True)
    model.to(device)
    copy_mapped_weights([model])
    return Classifier(model, reads, device, tuple(notes))


def _positions(config: Any) -> int:
    """Return the number of tokens that the model has positions for. RoBERTa models lose two of them to padding."""
    positions = getattr(config, "max_position_embeddings", None)
    return MAX_WINDOW if positions is None else max(8, int(positions) - 2)


def _to_image(image: RawImage | EncodedImage) -> Image.Image:
    if isinstance(image, RawImage):
        return to_image(image).convert("RGB")
    with Image.open(io.BytesIO(image.data)) as opened:
        return flattened(opened)
