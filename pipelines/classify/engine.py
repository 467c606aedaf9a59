"""Scores texts and pictures by label, with transformers' own classifiers. One thread, one checkpoint at a time on it.

A text longer than its model reads is scored window by window, with an overlap, and each label's highest score counts:
what is to be found must not hide behind a long beginning.
"""

import asyncio
import io
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
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

from pipelines.protocol.classify import Classified, ClassifierSpec, ClassifyEvent, ClassifyJob
from pipelines.protocol.images import EncodedImage, Failed, Picture, Queued, Started

LONGEST_WINDOW = 512  # tokens
OVERLAP = 0.25
MAX_ROWS = 16  # windows or pictures in one forward pass


@dataclass(frozen=True, slots=True)
class Classifier:
    """A loaded checkpoint: the network, and what turns a text or a picture into its input."""

    model: Any
    reader: Any
    device: torch.device

    def score_text(self, text: str) -> dict[str, float]:
        """Each label's highest score over the text's windows."""
        window = min(LONGEST_WINDOW, self.reader.model_max_length, _positions(self.model.config))
        encoded = self.reader(
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

    def score_picture(self, picture: Picture | EncodedImage) -> dict[str, float]:
        """Each label's score."""
        encoded = self.reader(images=_opened(picture), return_tensors="pt")
        return self._by_label(self._forward(dict(encoded))[0])

    def _forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Scores of shape (rows, labels), 0 to 1."""
        with torch.inference_mode():
            logits: torch.Tensor = (
                self.model(**{name: part.to(self.device) for name, part in inputs.items()}).logits.float().cpu()
            )
        several = self.model.config.problem_type == "multi_label_classification" or logits.shape[1] == 1
        return logits.sigmoid() if several else logits.softmax(dim=1)

    def _by_label(self, scores: torch.Tensor) -> dict[str, float]:
        names: Mapping[int, str] = self.model.config.id2label
        return {names[index]: float(score) for index, score in enumerate(scores)}


class ClassifyEngine:
    """Loads classifiers once and runs their jobs in the order in which they come."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loaded: dict[ClassifierSpec, Classifier] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="classify")
        self._wanted: set[str] = set()

    async def warm(self, spec: ClassifierSpec) -> None:
        """Load the checkpoint. Raises what transformers raises for a folder that is none."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._load, spec)

    async def submit(self, job: ClassifyJob) -> AsyncIterator[ClassifyEvent]:
        """Queued, Started, then Classified or Failed."""
        self._wanted.add(job.id)
        yield Queued()
        events: asyncio.Queue[ClassifyEvent] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        try:
            self._thread.submit(self._run, job, lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
            while isinstance(event := await events.get(), Started):
                yield event
            yield event
        finally:
            self._wanted.discard(job.id)

    def cancel(self, job_id: str) -> None:
        """Leave the job out if it has not begun."""
        self._wanted.discard(job_id)

    def _run(self, job: ClassifyJob, say: Callable[[ClassifyEvent], object]) -> None:
        if job.id not in self._wanted:
            say(Failed("cancelled", "The job was cancelled."))
            return
        try:
            began = time.monotonic()
            classifier = self._load(job.checkpoint)
            say(Started())  # from here on the server counts its time: a worker that hangs in it is killed
            scores = [classifier.score_text(text) for text in job.texts]
            scores += [classifier.score_picture(picture) for picture in job.pictures]
            say(Classified(tuple(scores), time.monotonic() - began))
        except Exception as error:
            say(_failure(job, error))

    def _load(self, spec: ClassifierSpec) -> Classifier:
        if spec not in self._loaded:
            self._loaded[spec] = load_classifier(spec, self._device)
        return self._loaded[spec]


def load_classifier(spec: ClassifierSpec, device: torch.device) -> Classifier:
    """From safetensors on the disk alone, in float32. Raises what transformers raises for a folder that is none."""
    texts = spec.reads == "prompts"
    kind: Any = AutoModelForSequenceClassification if texts else AutoModelForImageClassification
    reader: Any = AutoTokenizer if texts else AutoImageProcessor
    model = kind.from_pretrained(spec.path, local_files_only=True, use_safetensors=True, dtype=torch.float32)
    return Classifier(model.to(device).eval(), reader.from_pretrained(spec.path, local_files_only=True), device)


def _positions(config: Any) -> int:
    """Tokens that the model has positions for. RoBERTa's kind loses two of them to its padding."""
    positions = getattr(config, "max_position_embeddings", None)
    return LONGEST_WINDOW if positions is None else max(8, int(positions) - 2)


def _opened(picture: Picture | EncodedImage) -> Image.Image:
    if isinstance(picture, Picture):
        return Image.frombytes(picture.mode, (picture.width_px, picture.height_px), picture.data).convert("RGB")
    with Image.open(io.BytesIO(picture.data)) as image:
        return image.convert("RGB")


def _failure(job: ClassifyJob, error: Exception) -> Failed:
    detail = "".join(traceback.format_exception(error))
    return Failed("engine_failed", f"The classifier '{job.checkpoint.name}' could not be asked.", detail)
