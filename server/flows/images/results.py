"""The answer of an image call, from its job and its images. The images of a call that ended earlier are read from the
storage."""

import base64
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal

from sqlalchemy.orm import Session

from pipelines.protocol.images import Finished, ImageJob, Preview
from server.accounts.results import Origin, SentImages, StoredResult, write_origins
from server.backends.decoding.data_uri import decode_data_uri, is_data_uri
from server.backends.decoding.messages import ImageError
from server.backends.storage import NAME, Storage
from server.catalog.images import Catalog, ImageModel
from server.errors import NotFound
from server.flows.images.prompt_notes import describe_truncation
from server.flows.images.request import ImageRequest
from server.flows.references import Source, StoredImage
from server.schemas.images import CompletedEvent, ImageAnswer, ImageItem, PartialEvent, Usage
from server.state.active_calls import ActiveCall, AnswerFormat, ImageResult, ImageShape

FILE_ONLY = frozenset({"prompt", "original_prompt", "software"})  # of a job's metadata: not repeated in the answer
EventKind = Literal["image_generation", "image_edit"]


def shape_of(request: ImageRequest, model: ImageModel, job: ImageJob) -> ImageShape:
    """Return size, quality and format as the answer names them."""
    return ImageShape(
        f"{job.width_px}x{job.height_px}",
        model.resolved_quality(request.quality),
        job.encoding.format,
        job.encoding.background,
    )


def answer_format(request: ImageRequest, catalog: Catalog, *, with_bytes: bool) -> AnswerFormat:
    """Return the format that the request asks for, or else the one that clients of its model name read. `with_bytes`:
    other names answer with bytes beside the URL."""
    if request.response_format is not None:
        return request.response_format
    if catalog.answers_bytes(request.model):
        return "b64_json"
    return "both" if with_bytes else "url"


def build_result(
    request: ImageRequest,
    model: ImageModel,
    job: ImageJob,
    format_: AnswerFormat,
    finished: Finished,
    stored: Sequence[StoredResult],
) -> ImageResult:
    """Build the answer of a job whose images are stored. Its `parameters` are the job's and those that drawing has
    found; `batch` is "merged" if they shared forward passes, so low bits may differ from those of images drawn
    alone."""
    shape = shape_of(request, model, job)
    revised = job.prompt if "original_prompt" in job.metadata else None
    answer = ImageAnswer(
        created=int(time.time()),
        data=[
            ImageItem(url=f"{request.results_base}/{result.name}", revised_prompt=revised, seed=image.seed)
            for image, result in zip(finished.images, stored, strict=True)
        ],
        **asdict(shape),
        service_tier=None if request.service_tier is None else job.tier,
        usage=_usage(job),
        parameters={"seed": job.seed, **_drawn_with(job, finished)},
    )
    encoded = {result.name: image.data for image, result in zip(finished.images, stored, strict=True)}
    return ImageResult(job.id, answer, tuple(encoded), format_, encoded)


def _drawn_with(job: ImageJob, finished: Finished) -> dict[str, Any]:
    """Return the values of the job that an answer shows, and those that drawing has found."""
    shown = {name: value for name, value in job.metadata.items() if name not in FILE_ONLY and value is not None}
    return shown | dict(finished.found) | {"batch": "merged" if finished.merged else "exact"}


def truncated_of(request: ImageRequest, result: ImageResult) -> str:
    """Describe the parts of the call's prompts that no text encoder read; "" if they read all."""
    parameters = result.answer.parameters
    drawn = result.answer.data[0].revised_prompt or request.prompt
    return describe_truncation(parameters, {"prompt": drawn, "negative_prompt": parameters.get("negative_prompt")})


def sent_images(request: ImageRequest) -> SentImages:
    """Return the facts about the references that need no decoding. Blocking: it hashes files."""
    sources = [each.source for each in request.references]
    return SentImages([_result_name(source) for source in sources], [_hash(source) for source in sources])


def origins_write(
    request: ImageRequest, job: ImageJob, finished: Finished, sent: SentImages, result: ImageResult
) -> Callable[[Session], None]:
    """Return the write that records the origin of each image, to be asked for again: its prompt, its seed, the values
    that were used, how many references there were, whether there was a mask, and the results among the references."""
    shape = result.shape
    values = {"n": request.n, "size": shape.size, "quality": shape.quality, "output_format": shape.output_format}
    if shape.background == "transparent":
        values["background"] = shape.background
    if request.references:
        values |= {"references": len(request.references), "masked": request.mask is not None}
    if "original_prompt" in job.metadata:
        values["original_prompt"] = request.prompt
    parameters = values | _drawn_with(job, finished)
    origins = {
        name: Origin(image.seed, job.prompt, parameters)
        for name, image in zip(result.files, finished.images, strict=True)
    }
    return lambda session: write_origins(session, origins, sent)


def read_image(storage: Storage, result: ImageResult, name: str) -> bytes:
    """Read the bytes of a result's image. Blocking. Raises FileNotFoundError if the file was deleted, and
    ImageMissing."""
    return result.images.get(name) or storage.read(name)


async def load_answer(storage: Storage, result: ImageResult) -> ImageAnswer:
    """Return the answer with URLs, base64, or both. Raises NotFound if a file was deleted."""
    if result.response_format == "url":
        if not result.images:
            await storage.in_thread(_require_files, storage, result)
        return result.answer
    named = zip(result.files, result.answer.data, strict=True)
    data = [await storage.in_thread(_with_bytes, storage, result, name, item) for name, item in named]
    return result.answer.model_copy(update={"data": data})


def _result_name(source: Source) -> str | None:
    """Return the name of the result whose URL this may be; None if it is no such URL."""
    if isinstance(source, StoredImage):
        return source.name
    if isinstance(source, bytes) or is_data_uri(source):
        return None
    name = source.partition("?")[0].rpartition("/")[2]
    return name if NAME.fullmatch(name) else None


def _hash(source: Source) -> str | None:
    """Return the SHA-256 of an image that came with the request; None for a URL."""
    if isinstance(source, str) and is_data_uri(source):
        try:
            source = decode_data_uri(source)
        except ImageError:  # raw base64 is no data URI, and never a result here
            return None
    return hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else None


def _with_bytes(storage: Storage, result: ImageResult, name: str, item: ImageItem) -> ImageItem:
    data = _read_base64(storage, result, name)
    url = item.url if result.response_format == "both" else None
    return item.model_copy(update={"url": url, "b64_json": data})


async def image_events(
    storage: Storage, call: ActiveCall, kind: EventKind
) -> AsyncIterator[PartialEvent | CompletedEvent]:
    """Yield the call's previews as they come, then each finished image. Raises ApiError."""
    shape = await call.admission()
    async for preview in call.follow():
        yield _partial_event(preview, shape, kind)
    result = await call.result()
    for position, name in enumerate(result.files):
        data = await storage.in_thread(_read_base64, storage, result, name)
        yield _completed_event(result, position, data, kind)


def _require_files(storage: Storage, result: ImageResult) -> None:
    for name in result.files:
        try:
            storage.require(name)
        except FileNotFoundError as error:
            raise _deleted_error(name) from error


def _read_base64(storage: Storage, result: ImageResult, name: str) -> str:
    try:
        return base64.b64encode(read_image(storage, result, name)).decode()
    except FileNotFoundError as error:
        raise _deleted_error(name) from error


def _deleted_error(name: str) -> NotFound:
    return NotFound(f"The image '{name}' has been deleted.", code="result_not_found")


def _partial_event(preview: Preview, shape: ImageShape, kind: EventKind) -> PartialEvent:
    return PartialEvent.describe(
        shape,
        type="image_edit.partial_image" if kind == "image_edit" else "image_generation.partial_image",
        b64_json=base64.b64encode(preview.image.data).decode(),
        created_at=int(time.time()),
        quality=shape.quality or "auto",
        size=f"{preview.image.width_px}x{preview.image.height_px}",  # of the preview, which is smaller than the image
        partial_image_index=preview.number,
        image_index=preview.index,
    )


def _completed_event(result: ImageResult, position: int, data: str, kind: EventKind) -> CompletedEvent:
    answer, item = result.answer, result.answer.data[position]
    return CompletedEvent.describe(
        answer,
        type="image_edit.completed" if kind == "image_edit" else "image_generation.completed",
        b64_json=data,
        created_at=answer.created,
        quality=answer.quality or "auto",
        usage=_usage_share(answer.usage, position, len(answer.data)),
        image_index=position,
        url=item.url,
        revised_prompt=item.revised_prompt,
        seed=item.seed,
    )


def _usage(job: ImageJob) -> Usage:
    text = -(-len(job.prompt.encode()) // 4)
    image = sum(_image_tokens(reference.width_px, reference.height_px) for reference in job.references)
    return _count(text, image, job.n * _image_tokens(job.width_px, job.height_px))


def _usage_share(whole: Usage, position: int, n: int) -> Usage:
    """Return one image's share of the usage. The shares add up: the input is counted with the first image."""
    inputs = whole.input_tokens_details if position == 0 else {"text_tokens": 0, "image_tokens": 0}
    return _count(inputs["text_tokens"], inputs["image_tokens"], whole.output_tokens // n)


def _count(text: int, image: int, output: int) -> Usage:
    return Usage(
        input_tokens=text + image,
        input_tokens_details={"text_tokens": text, "image_tokens": image},
        output_tokens=output,
        output_tokens_details={"image_tokens": output, "text_tokens": 0},
        total_tokens=text + image + output,
    )


def _image_tokens(width_px: int, height_px: int) -> int:
    return -(-width_px // 16) * -(-height_px // 16)
