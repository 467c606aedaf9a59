"""The image call of a conversation. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from server.accounts.fingerprints import fingerprint
from server.catalog.images import ImageModel
from server.errors import BadRequest
from server.flows.chat_images.conversation import Drawing
from server.flows.images.request import ImageRequest, named_images
from server.schemas.images import ImageOptions, SamplingOptions
from server.schemas.validation import validate

ROUTE_FIELDS = {"model", "prompt", "response_format", "stream", "partial_images"}
OPTIONS = frozenset(ImageOptions.model_fields.keys() - ROUTE_FIELDS)  # what a chat may set beside its own fields
REQUEST_FIELDS = {field.name for field in dataclasses.fields(ImageRequest)} & OPTIONS


def to_image_request(
    values: Mapping[str, Any], drawing: Drawing, model: ImageModel, endpoint: str, results_base: str
) -> ImageRequest:
    """Return the image call. `values` are options of the image routes, not validated yet. Raises BadRequest."""
    if not drawing.prompt.strip():
        message = "The last message has no text: say what to draw."
        raise BadRequest(message, param="prompt", code="string_below_min_length")
    options = validate(ImageOptions, {**values, "prompt": drawing.prompt}, strict=True)
    return ImageRequest(
        endpoint=endpoint,
        results_base=results_base,
        prompt=drawing.prompt,
        references=drawing.references,
        model=model.name,
        response_format="b64_json",
        sampling=SamplingOptions(**options.model_dump(include=set(SamplingOptions.model_fields))),
        **options.model_dump(include=REQUEST_FIELDS),
    )


def request_fingerprint(sent: Mapping[str, Any], request: ImageRequest) -> str:
    """Return the fingerprint by which a retry is matched to this call. `sent` is the caller's body."""
    fields = {field.name: (getattr(request, field.name), field.default) for field in dataclasses.fields(request)}
    for name in ("sampling", "references", "mask", "results_base"):
        fields.pop(name)
    meant = {name: value for name, (value, default) in fields.items() if value != default}
    sampling = request.sampling.model_dump(mode="json", exclude_defaults=True)
    return fingerprint(sent, {**meant, "sampling": sampling}, named_images(request))
