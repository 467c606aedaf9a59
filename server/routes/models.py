"""GET /v1/models and /v1/models/{id}: every model of the catalog, also those that the key's groups do not allow."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse, Response

from server.http.deps import Caller, ServicesDep
from server.http.dialect import find_client
from server.http.model_cards import find_card, list_cards
from server.http.openapi import errors
from server.schemas.models import ChatCard, ModelCard, ModelList

router = APIRouter(prefix="/v1/models")
READ = ["GET", "HEAD"]
ModelName = Annotated[str, Path(description="The name of a model, or an alias.")]


@router.api_route(
    "/", methods=READ, response_model=ModelList, include_in_schema=False
)  # a base URL that ends in a slash
@router.api_route("", methods=READ, response_description="The models.", response_model=ModelList)
async def list_models(request: Request, _: Caller, services: ServicesDep) -> ModelList | Response:
    """List models.

    Lists every model of the catalog, also those that the key's groups do not allow: image models with their sizes,
    qualities, adapters, limits and price, chat models with their inputs and context. `type` and `architecture` tell
    them apart. To clients of another protocol, which its headers tell, the list has that protocol's shape.
    """
    cards, client = await list_cards(services), find_client(request.scope)
    if client is not None and client.models is not None:
        return JSONResponse(client.models.page(cards, request.query_params))
    return ModelList(data=cards)


@router.api_route(
    "/{name:path}",
    methods=READ,
    response_description="The model.",
    responses=errors(404),
    response_model=ModelCard | ChatCard,
)
async def show_model(
    name: ModelName, request: Request, _: Caller, services: ServicesDep
) -> ModelCard | ChatCard | Response:
    """Get a model.

    Returns one model, by its name or an alias. An alias of an image model and a chat model is the image model's.
    """
    card, client = await find_card(services, name), find_client(request.scope)
    if client is not None and client.models is not None:
        return JSONResponse(client.models.one(card))
    return card
