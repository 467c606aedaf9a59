"""What a client is told of each model: its card in the list of models."""

import asyncio
from collections.abc import Mapping

from pipelines.checkpoints.work.plan import find_task
from pipelines.protocol.images import Control
from pipelines.protocol.messages import Capabilities
from pipelines.protocol.upstream import Upstream
from server.catalog.chat import ChatModel
from server.catalog.images import MAX_REFERENCES, ImageModel
from server.catalog.sizes import GRID_PX, MAX_AREA_PX, MAX_SIDE_PX, MIN_AREA_PX, MIN_SIDE_PX
from server.errors import ModelNotFound
from server.flows.admission import unknown_model
from server.flows.images.controls import offered_controls
from server.flows.images.enlarging import can_enlarge
from server.flows.images.request import offered_loras, offered_schedulers, reference_limit
from server.money import format_money
from server.schemas.image_synonyms import MAX_STEPS
from server.schemas.images import MAX_PROMPT
from server.schemas.models import Architecture, ChatCard, ControlCard, ImageLimits, Modality, ModelCard
from server.services import Services

Card = ModelCard | ChatCard


async def list_cards(services: Services) -> list[Card]:
    """Describe every model of the catalog."""
    catalog = services.served.catalog.current
    contexts = await services.engines.upstream_contexts.read(catalog.chat.upstreams)
    images = await asyncio.to_thread(lambda: [_image_card(model, services) for model in catalog.models.values()])
    return [*images, *(_chat_card(model, services, contexts) for model in catalog.chat.models.values())]


async def find_card(services: Services, name: str) -> Card:
    """Describe a model, by its name or an alias. An alias of an image model and a chat model is the image model's.
    Raises ModelNotFound."""
    catalog = services.served.catalog.current
    if (image := catalog.find(name)) is not None:
        return await asyncio.to_thread(_image_card, image, services)
    if (chat := catalog.chat.find(name)) is not None:
        upstreams = (chat.source,) if isinstance(chat.source, Upstream) else ()
        return _chat_card(chat, services, await services.engines.upstream_contexts.read(upstreams))
    raise ModelNotFound(name, unknown_model(name, (*catalog.names, *catalog.chat.names)))


def _image_card(model: ImageModel, services: Services) -> ModelCard:
    """Describe an image model. It reads the folder of its adapters."""
    capabilities = services.engines.image.capabilities(model.checkpoint)
    widest = model.drawn_with(MAX_REFERENCES)
    max_references = reference_limit(widest, services.engines.image.capabilities(widest.checkpoint))
    supports = capabilities.names if capabilities is not None else []
    if supports and max_references and "image" not in supports:
        supports.append("image")
    task = find_task(model.drawn_with(1).checkpoint, has_references=True, has_mask=False)
    is_here = model.checkpoint.upstream is None  # another server's card does not say it
    if is_here and supports and max_references and not task.starts_from_noise:
        supports.append("strength")
    if can_enlarge(model, capabilities):
        supports.append("upscale")
    inputs: list[Modality] = ["text", "image"] if max_references else ["text"]
    if model.checkpoint.conditioning == "upscale":
        inputs, max_references = ["image"], 0
    return ModelCard.describe(
        model,
        id=model.name,
        architecture=Architecture(input_modalities=inputs, output_modalities=["image"]),
        aliases=_aliases(services.served.catalog.current.aliases, model.name),
        family=model.checkpoint.family,
        sizes={ratio: f"{width}x{height}" for ratio, (width, height) in model.sizes.presets.items()},
        qualities=list(model.quality or ()),
        supports=supports,
        negative_prompt_above=capabilities.negative_prompt_above if capabilities is not None else None,
        reproducible=capabilities.reproducible if capabilities is not None else None,
        long_prompts=list(capabilities.long_prompts) if capabilities is not None else [],
        adapters=offered_loras(model, capabilities),
        schedulers=offered_schedulers(model, capabilities),
        controls=[_control_card(control, capabilities) for control in offered_controls(model, capabilities)],
        max_references=max_references,
        limits=ImageLimits(
            max_n=services.settings.max_n,
            max_prompt_characters=MAX_PROMPT,
            prompt_tokens=capabilities.prompt_tokens if capabilities is not None else None,
            max_references=max_references,
            max_steps=MAX_STEPS,
            min_area_px=MIN_AREA_PX[model.tier],
            max_area_px=MAX_AREA_PX[model.tier],
            min_side_px=MIN_SIDE_PX,
            max_side_px=MAX_SIDE_PX,
            side_multiple=GRID_PX,
        ),
        price=format_money(model.price_units),
    )


def _control_card(control: Control, capabilities: Capabilities | None) -> ControlCard:
    works_with = capabilities.controlled_with(control.kind) if capabilities is not None else []
    return ControlCard.describe(control, map=control.map or None, works_with=works_with)


def _chat_card(model: ChatModel, services: Services, contexts: Mapping[Upstream, int | None]) -> ChatCard:
    found = services.engines.chat.chat_capabilities(model.spec) if model.spec else None
    vision = found.vision if found else model.vision
    inputs: list[Modality] = ["text", "image"] if vision else ["text"]
    context = contexts.get(model.source) if isinstance(model.source, Upstream) else model.source.context
    context = found.context if found else context
    return ChatCard.describe(
        model,
        id=model.name,
        architecture=Architecture(input_modalities=inputs, output_modalities=["text"]),
        aliases=_aliases(services.served.catalog.current.chat.aliases, model.name),
        tools=model.tools and found.tools if found else model.tools,
        vision=vision,
        max_model_len=context,
        context_length=context,
        max_input_tokens=context,
        batched=found.unbatched_reason is None if found else None,
        why_not_batched=found.unbatched_reason if found else None,
        notes=list(found.notes) if found else None,
        defaults=dict(model.spec.defaults) if model.spec else None,
    )


def _aliases(aliases: Mapping[str, str], name: str) -> list[str]:
    return [alias for alias, named in aliases.items() if named == name]
