"""Which model of a family draws at a resolution."""

from server.catalog.images import Catalog, ImageModel
from server.errors import BadRequest


def model_of_tier(catalog: Catalog, model: ImageModel, tier: str | None, param: str) -> ImageModel:
    """Return the model of the same catalog file with this tier; the model itself without one. Raises BadRequest."""
    family = [other for other in catalog.models.values() if other.source == model.source]
    if tier is None or tier == model.tier:
        return model
    found = next((other for other in family if other.tier == tier), None)
    if found is None:
        offered = ", ".join(f"'{other.tier}'" for other in family)
        message = f"Model `{model.name}` and its family don't draw at {tier[:20]!r}. Supported values are: {offered}."
        raise BadRequest(message, param=param)
    return found
