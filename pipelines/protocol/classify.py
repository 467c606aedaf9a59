"""Moderation jobs: texts and images in, scores by label out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipelines.protocol.images import EncodedImage, Failed, Queued, RawImage, Started

Reads = Literal["prompts", "pictures"]


@dataclass(frozen=True, slots=True)
class ClassifierSpec:
    """A transformers folder: text-classification for prompts, image-classification for images."""

    name: str
    path: Path
    reads: Reads
    version: str = ""  # of its files: others under the same path are another classifier
    source: str = field(default="the moderation policy", compare=False)  # for people


@dataclass(frozen=True, slots=True)
class ClassifyJob:
    """Texts or images for one classifier."""

    id: str
    checkpoint: ClassifierSpec
    texts: tuple[str, ...] = ()
    images: tuple[RawImage | EncodedImage, ...] = ()
    time_limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Classified:
    """The last event of a job that succeeded: for each text or image, a score from 0 to 1 for every label."""

    scores: tuple[Mapping[str, float], ...]
    run_s: float


ClassifyEvent = Queued | Started | Classified | Failed
