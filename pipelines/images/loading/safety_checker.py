"""A checkpoint's own safety checker. Diffusers gives a black image for one that it flags; here the job fails."""

from collections.abc import Mapping
from typing import Any, Final

FLAGS: Final = "nsfw_content_detected"  # of a pipeline's output: one for each image, or None without a checker
WITHOUT: Final = '"safety_checker": [null, null] in its model_index.json loads it without (docs/guides/moderation.md)'


class BlockedImage(Exception):
    """The checkpoint's safety checker has flagged the image."""


def check_flags(output: Any) -> None:
    """Check that no image of a pipeline's output was flagged, which makes it black. Raises BlockedImage."""
    if any(getattr(output, FLAGS, None) or ()):
        raise BlockedImage(WITHOUT)


def safety_note(components: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note for the operator that the checkpoint has a safety checker; none if it has none."""
    if components.get("safety_checker") is None:
        return ()
    return (f"its own safety checker blocks images; {WITHOUT}",)


def ignore_flags(pipeline: Any) -> None:
    """Let a pipeline's safety checker run, and return every image as it is: warmup's images are for nobody, and black
    ones would show nothing of the checkpoint's capabilities."""
    checker = getattr(pipeline, "safety_checker", None)
    if checker is None:
        return

    def run(images: Any, clip_input: Any) -> tuple[Any, list[bool]]:
        checker(images=list(images), clip_input=clip_input)  # it replaces items of what it is given
        return images, [False] * len(images)

    pipeline.safety_checker = run
