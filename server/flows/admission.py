"""What every request passes before its flow begins: the model that it names, and whether its key may use it; limits,
moderation, references."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from server.catalog.chat import ChatModel
from server.catalog.images import Catalog, ImageModel
from server.errors import BadRequest, Forbidden, ModelNotFound
from server.flows.moderation import Moderator
from server.flows.rate_limits import RateLimiter
from server.flows.references import ReferenceLoader

ServedModel = TypeVar("ServedModel", ImageModel, ChatModel)


def unknown_model(name: str | None, known: Iterable[str]) -> str:
    """Return the message for a name that no model has, with the known name that is probably meant."""
    near = get_close_matches(name or "", known, n=1, cutoff=0.75)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    return f"The model `{name}` does not exist or you do not have access to it.{meant}"


def find_image_model(catalog: Catalog, name: str | None, groups: frozenset[str], size: str | None = None) -> ImageModel:
    """Find the image model of a name or an alias, of one with tiers that which draws this size; without a name, the
    default. Raises NotFound or Forbidden."""
    message = unknown_model(name, catalog.names)
    not_found = ModelNotFound(name, f"{message} Image models here: {', '.join(catalog.models)}.")
    return _check_served(catalog.find_for_size(name, size), groups, not_found)


def find_chat_model(catalog: Catalog, name: str | None, groups: frozenset[str]) -> ChatModel:
    """Find the chat model of a name or an alias; without a name, the default, which is optional in a catalog. Raises
    ApiError."""
    chat = catalog.chat
    known = f"Chat models here: {', '.join(chat.models) or 'none; model_configs/chat.toml would name them'}."
    if name is None and chat.default is None:
        message = f"Missing required parameter: 'model'. {known}"
        raise BadRequest(message, param="model", code="missing_required_parameter")
    message = unknown_model(name, chat.names)
    if name in catalog.models:
        message = f"The model `{name}` draws images and does not chat."
    return _check_served(chat.find(name), groups, ModelNotFound(name, f"{message} {known}"))


def _check_served(model: ServedModel | None, groups: frozenset[str], not_found: ModelNotFound) -> ServedModel:
    if model is None:
        raise not_found
    if model.group not in groups:
        raise Forbidden(
            f"Your API key does not have access to model `{model.name}`: it lacks the group '{model.group}'. "
            "Ask the operator for a key with that group (darkroom keys create --group).",
            param="model",
        )
    return model


@dataclass(frozen=True, slots=True)
class Admission:
    """The rate limits, the moderation and the loading of references that every request passes."""

    limiter: RateLimiter
    moderator: Moderator
    references: ReferenceLoader
