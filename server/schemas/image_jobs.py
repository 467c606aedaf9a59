"""Image calls by their ids: their reports for their owner while they run and afterwards."""

from typing import Literal

from server.errors import ErrorDetail
from server.schemas.base import Answer, Listed, Listing, OmittedIfNone
from server.schemas.images import ImageAnswer

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class ImageProgress(Answer):
    """How many of the denoising steps are done."""

    step: int
    steps: int


class ImagePreview(Answer):
    """The newest preview of one of the call's images."""

    image_index: int
    partial_image_index: int
    b64_json: str


class ImageJobState(Listed):
    """GET /v1/images/jobs/{id}. `result` is the answer that the call got or would have got, `error` its error.

    While it runs: `position` is 0 on the device and else its place in the queue, `estimated_s` the seconds until it
    should have ended. `previews` are there if they were asked for.
    """

    object: Literal["image.job"] = "image.job"
    created: int
    model: str | None = None
    state: JobState
    position: int | None = None
    estimated_s: float | None = None
    progress: ImageProgress | None = None
    previews: OmittedIfNone[list[ImagePreview]] = None
    result: ImageAnswer | None = None
    error: ErrorDetail | None = None


class ImageJobList(Listing[ImageJobState]):
    """GET /v1/images/jobs: a page, without results."""
