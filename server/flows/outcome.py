"""What becomes of an image call, as plain values."""

from dataclasses import dataclass

from server.wire.images import ImageAnswer


@dataclass(frozen=True, slots=True)
class ImageShape:
    """What is known of the pictures before they are drawn."""

    size: str
    quality: str | None
    output_format: str


@dataclass(frozen=True, slots=True)
class ImageResult:
    """A call whose pictures are stored. `answer` names them by URL; `files` are their names in the storage."""

    call_id: str
    answer: ImageAnswer
    files: tuple[str, ...]

    @property
    def shape(self) -> ImageShape:
        """What was drawn."""
        return ImageShape(self.answer.size, self.answer.quality, self.answer.output_format)
