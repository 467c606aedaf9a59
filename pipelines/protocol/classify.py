"""The moderation half of the contract between `server` and `pipelines`: texts and pictures in, scores by label out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipelines.protocol.images import EncodedImage, Failed, Picture, Queued, Started

Reads = Literal["prompts", "pictures"]


@dataclass(frozen=True, slots=True)
class ClassifierSpec:
    """A transformers folder: text-classification for prompts, image-classification for pictures."""

    name: str
    path: Path
    reads: Reads


@dataclass(frozen=True, slots=True)
class ClassifyJob:
    """What one classifier shall score: texts, or pictures."""

    id: str
    checkpoint: ClassifierSpec
    texts: tuple[str, ...] = ()
    pictures: tuple[Picture | EncodedImage, ...] = ()
    time_limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Classified:
    """The last event of a job that succeeded: each text's or picture's score (0 to 1) for every label."""

    scores: tuple[Mapping[str, float], ...]
    run_s: float


ClassifyEvent = Queued | Started | Classified | Failed
