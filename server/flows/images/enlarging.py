"""Which models enlarge an image, and what a request for it may say."""

from pipelines.protocol.messages import Capabilities
from server.catalog.images import ImageModel
from server.errors import BadRequest
from server.flows.images.request import ImageRequest, check_compression


def can_enlarge(model: ImageModel, capabilities: Capabilities | None) -> bool:
    """Return whether a model has shown that it can redraw an enlarged image."""
    return capabilities is not None and capabilities.second_pass and _can_redraw(model)


def check_enlarging(request: ImageRequest, model: ImageModel, capabilities: Capabilities | None) -> None:
    """Refuse to enlarge an image with a model that only scales larger images, or is another server's. One that has not
    been loaded yet may try. Raises BadRequest."""
    is_unknown = capabilities is None and model.checkpoint.upstream is None and _can_redraw(model)
    if not is_unknown and not can_enlarge(model, capabilities):
        message = f"Model `{model.name}` can't enlarge images: use one whose `supports` in /v1/models have 'upscale'."
        raise BadRequest(message, param="model", code="unsupported_value")
    check_compression(request)


def _can_redraw(model: ImageModel) -> bool:
    """Return whether the catalog lets a model enlarge: one that draws from a map with every call would need it here."""
    return model.checkpoint.enlarge == "redraw" and model.checkpoint.own_map is None
