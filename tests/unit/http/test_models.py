"""/v1/models tells a client all that it needs to fill its menus."""

from pathlib import Path

from server.catalog.images import load_catalog
from server.catalog.sizes import resolve_size
from server.data_folders import REPOSITORY
from tests.support.in_process import in_process


async def test_image_models_have_sizes_qualities_adapters_limits_and_a_price(tmp_path: Path) -> None:
    async with in_process(tmp_path, max_n=4) as running:
        cards = {card["id"]: card for card in (await running.client.get("/v1/models")).json()["data"]}
        alias = (await running.client.get("/v1/models/gpt-image-1")).json()
    catalog = load_catalog(REPOSITORY / "model_configs", tmp_path)
    images = {name for name, card in cards.items() if card["type"] == "image"}
    assert images == catalog.models.keys()
    assert cards.keys() - images == catalog.chat.models.keys()
    alpha, beta, chat = (
        cards[name] for name in ("alpha-image-2-count", "beta-3.1-flash-image-4k-count", "starter-chat")
    )
    assert alias == alpha
    assert {"gpt-image-1", "dall-e-3", "gpt-image-*"} <= set(alpha["aliases"])
    sizes = catalog.models[alpha["id"]].sizes
    assert alpha["sizes"] == {ratio: str(resolve_size(sizes, ratio, None)) for ratio in alpha["ratios"]}
    assert (alpha["qualities"], alpha["default_quality"]) == (["low", "medium", "high", "xhigh", "max"], "high")
    assert (beta["qualities"], beta["default_quality"], beta["price"]) == ([], None, "0.55")
    assert (alpha["limits"]["max_n"], alpha["limits"]["max_area_px"]) == (4, 1_850_000)
    assert beta["limits"]["min_area_px"] > 4_000_000
    assert alpha["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["image"]}
    assert chat["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    assert "gpt-5" in chat["aliases"]
    assert alpha["adapters"] == []


async def test_adapters_of_a_models_folder_are_listed(tmp_path: Path) -> None:
    (tmp_path / "adapters").mkdir()
    for name in ("ink", "clay"):
        (tmp_path / "adapters" / f"{name}.safetensors").touch()
    async with in_process(tmp_path, lora_folder="adapters") as running:
        card = (await running.client.get("/v1/models/alpha-image-2-count")).json()
    assert card["adapters"] == ["clay", "ink"]
