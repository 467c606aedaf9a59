"""GET /v1/models and /v1/models/{id}: every model, whatever the key's groups allow."""

from fastapi import APIRouter

from pipelines.catalog import ImageModel
from server.accounts.money import format_money
from server.errors import NotFound
from server.routes.deps import Caller, ServicesDep
from server.wire.models import ModelCard, ModelList

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(_: Caller, services: ServicesDep) -> ModelList:
    """The catalog."""
    return ModelList(data=[_card(model) for model in services.catalog.models.values()])


@router.get("/{name:path}")
async def show_model(name: str, _: Caller, services: ServicesDep) -> ModelCard:
    """One model, by its name or an alias."""
    model = services.catalog.find(name)
    if model is None:
        message = f"The model `{name}` does not exist or you do not have access to it."
        raise NotFound(message, param="model", code="model_not_found")
    return _card(model)


def _card(model: ImageModel) -> ModelCard:
    return ModelCard(
        id=model.name,
        created=model.created,
        owned_by=model.owned_by,
        family=model.checkpoint.family,
        group=model.group,
        tier=model.tier,
        ratios=list(model.ratios),
        qualities=list(model.quality or ()),
        price=format_money(model.price),
    )
