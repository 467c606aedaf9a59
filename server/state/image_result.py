"""The outcome of an image call, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.protocol.images import Background
from server.schemas.images import ImageAnswer

AnswerFormat = Literal["url", "b64_json", "both"]


@dataclass(frozen=True, slots=True)
class ImageShape:
    """The properties of the images that are known before they are drawn."""

    size: str
    quality: str | None
    output_format: str
    background: Background = "opaque"


@dataclass(frozen=True, slots=True)
class ImageResult:
    """A call whose images are stored. `answer` names them by URL; `files` are their names in the storage.

    `images` are the files' bytes while the call has just ended: it is charged, so its answer must not depend on a
    storage that may have gone away since.
    """

    call_id: str
    answer: ImageAnswer
    files: tuple[str, ...]
    response_format: AnswerFormat
    images: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> ImageShape:
        """Return the shape of the images that were drawn."""
        return ImageShape(self.answer.size, self.answer.quality, self.answer.output_format, self.answer.background)

    def to_record(self) -> dict[str, Any]:
        """Return the result as JSON for the database. There are no bytes in it: those are in the storage."""
        answer = self.answer.model_dump(mode="json")
        return {"answer": answer, "files": list(self.files), "response_format": self.response_format}

    @classmethod
    def from_record(cls, call_id: str, record: Mapping[str, Any]) -> "ImageResult":
        """Build the result from a record that `to_record` wrote."""
        answer = ImageAnswer.model_validate(record["answer"])
        return cls(call_id, answer, tuple(record["files"]), record["response_format"])
