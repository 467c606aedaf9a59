"""Which chat model a request means, and whether its key may use it."""

from pipelines.catalog.chat import ChatModel
from pipelines.catalog.images import Catalog
from server.errors import BadRequest, Forbidden, NotFound


def find_chat_model(catalog: Catalog, name: str | None, groups: frozenset[str]) -> ChatModel:
    """The chat model of a name, an alias or, where the catalog has a default, no name. Raises ApiError."""
    chat = catalog.chat
    known = ", ".join(chat.models) or "none; model_configs/chat.toml would name them"
    if name is None and chat.default is None:
        message = f"Missing required parameter: 'model'. Chat models here: {known}."
        raise BadRequest(message, param="model", code="missing_required_parameter")
    model = chat.find(name)
    if model is None:
        message = f"The model `{name}` does not exist or you do not have access to it. Chat models here: {known}."
        if name in catalog.models:
            message = f"The model `{name}` draws pictures and does not chat. Chat models here: {known}."
        raise NotFound(message, param="model", code="model_not_found")
    if model.group not in groups:
        raise Forbidden(
            f"Your API key does not have access to model `{model.name}`: it lacks the group '{model.group}'. "
            "Ask the operator for a key with that group (darkroom keys create --group).",
            param="model",
        )
    return model
