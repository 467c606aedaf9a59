"""GET /v1/models and /v1/models/{id}: every model of the catalog, also those that the key's groups do not allow."""

from fastapi import APIRouter

from pipelines.catalog.chat import ChatModel
from pipelines.catalog.images import ImageModel
from pipelines.protocol.chat import ChatSpec
from server.accounts.money import format_money
from server.errors import NotFound
from server.http.deps import Caller, ServicesDep
from server.http.openapi import answer, openapi, parameter, schema_of
from server.schemas.models import ChatCard, ModelCard, ModelList
from server.services import Services

router = APIRouter(prefix="/v1/models")


@router.get(
    "",
    **openapi(
        "List models",
        "Lists every model of the catalog, also those that the key's groups do not allow.",
        success=answer("The models.", ModelList),
        errors=[401, 500, 503],
    ),
)
async def list_models(_: Caller, services: ServicesDep) -> ModelList:
    """The catalog."""
    catalog = services.catalog.current
    images, chats = catalog.models.values(), catalog.chat.models.values()
    return ModelList(
        data=[*(_image_card(model, services) for model in images), *(_chat_card(model) for model in chats)]
    )


@router.get(
    "/{name:path}",
    **openapi(
        "Get a model",
        "Returns one model, by its name or an alias. An alias of an image model and a chat model is the image model's.",
        parameters=[parameter("path", "name", "The name of a model, or an alias.")],
        success=answer("The model.", {"anyOf": [schema_of(card, "serialization") for card in (ModelCard, ChatCard)]}),
        errors=[401, 404, 500, 503],
    ),
)
async def show_model(name: str, _: Caller, services: ServicesDep) -> ModelCard | ChatCard:
    """One model, by its name or an alias. An alias of an image model and a chat model is the image model's here."""
    catalog = services.catalog.current
    image = catalog.find(name)
    if image is not None:
        return _image_card(image, services)
    chat = catalog.chat.find(name)
    if chat is not None:
        return _chat_card(chat)
    message = f"The model `{name}` does not exist or you do not have access to it."
    raise NotFound(message, param="model", code="model_not_found")


def _image_card(model: ImageModel, services: Services) -> ModelCard:
    abilities = services.image_engine.abilities(model.checkpoint)
    return ModelCard(
        id=model.name,
        created=model.created,
        owned_by=model.owned_by,
        family=model.checkpoint.family,
        group=model.group,
        tier=model.tier,
        ratios=list(model.ratios),
        qualities=list(model.quality or ()),
        supports=abilities.names if abilities is not None else [],
        max_references=abilities.references if abilities is not None else model.checkpoint.max_references,
        price=format_money(model.price),
    )


def _chat_card(model: ChatModel) -> ChatCard:
    spec = model.source if isinstance(model.source, ChatSpec) else None
    return ChatCard(
        id=model.name,
        created=model.created,
        owned_by=model.owned_by,
        group=model.group,
        tools=spec.tools if spec else None,
        vision=spec.vision if spec else None,
    )
