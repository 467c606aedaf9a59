"""/v1/models tells a client all that it needs to fill its menus."""

import shutil
from pathlib import Path

from server.catalog.images import load_catalog
from server.catalog.sizes import resolve_size
from server.data_folders import REPOSITORY
from tests.support.in_process import in_process
from tests.support.scripted_upstream import scripted_upstream


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


ANTHROPIC = {"anthropic-version": "2023-06-01"}
GOOGLE = {"x-goog-api-client": "google-genai-sdk/3.6.1"}
CLIENTS: dict[str, dict[str, str]] = {"openai": {}, "anthropic": ANTHROPIC, "google": GOOGLE}


async def test_each_protocols_clients_get_models_in_its_shape(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running:
        client = running.client
        theirs = (await client.get("/v1/models?limit=1000", headers=ANTHROPIC)).json()
        one = (await client.get("/v1/models/starter-chat", headers=ANTHROPIC)).json()
        google = (await client.get("/v1/models", headers=GOOGLE)).json()
        beta = (await client.get("/v1beta/models")).json()
        named = (await client.get("/v1/models/gpt-5", headers=GOOGLE)).json()
        unknown = {name: await client.get("/v1/models/none", headers=sent) for name, sent in CLIENTS.items()}
    assert one in theirs["data"]
    assert (one["type"], one["display_name"], one["created_at"]) == ("model", "starter-chat", "2025-10-09T08:53:20Z")
    assert one["max_input_tokens"] == one["max_tokens"]
    assert (theirs["has_more"], theirs["first_id"]) == (False, theirs["data"][0]["id"])
    assert google == beta
    assert named["name"] == "models/starter-chat"
    assert "countTokens" in named["supportedGenerationMethods"]
    said = {name: (answer.status_code, answer.json()["error"]) for name, answer in unknown.items()}
    assert {status for status, _ in said.values()} == {404}
    assert said["openai"][1]["code"] == "model_not_found"
    assert said["anthropic"][1]["type"] == "not_found_error"
    assert said["anthropic"][1]["message"].startswith("model: none")
    assert said["google"][1]["status"] == "NOT_FOUND"
    assert said["google"][1]["message"].startswith("models/none is not found")


async def test_lists_of_models_come_in_pages(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running:
        client = running.client
        every = (await client.get("/v1/models", headers=GOOGLE)).json()["models"]
        first = (await client.get("/v1/models?pageSize=3", headers=GOOGLE)).json()
        rest = (await client.get(f"/v1/models?pageToken={first['nextPageToken']}", headers=GOOGLE)).json()
        assert [*first["models"], *rest["models"]] == every
        assert "nextPageToken" not in rest
        chats = (await client.get("/v1/models?limit=1000", headers=ANTHROPIC)).json()["data"]
        page = (await client.get("/v1/models?limit=1", headers=ANTHROPIC)).json()
        assert (page["data"], page["has_more"]) == (chats[:1], len(chats) > 1)
        after = (await client.get(f"/v1/models?after_id={page['last_id']}", headers=ANTHROPIC)).json()
        assert (after["data"], after["has_more"]) == (chats[1:], False)
        before = (await client.get(f"/v1/models?before_id={chats[-1]['id']}", headers=ANTHROPIC)).json()
        assert (before["data"], before["has_more"]) == (chats[:-1], False)
        for query, headers in (("limit=0", ANTHROPIC), ("limit=x", ANTHROPIC), ("pageToken=x", GOOGLE)):
            wrong = await client.get(f"/v1/models?{query}", headers=headers)
            assert (wrong.status_code, query.partition("=")[0] in wrong.text) == (400, True)


async def test_urls_that_are_not_served_are_told_in_the_clients_shape(tmp_path: Path) -> None:
    async with in_process(tmp_path) as running:
        for path in ("/v1/files", "/v1/skills", "/v1/cachedContents", "/v1/interactions"):
            answers = {name: await running.client.get(path, headers=sent) for name, sent in CLIENTS.items()}
            assert {answer.status_code for answer in answers.values()} == {404}, path
            assert answers["openai"].json()["error"]["type"] == "invalid_request_error"
            assert answers["anthropic"].json()["error"]["type"] == "not_found_error"
            assert answers["google"].json()["error"]["status"] == "NOT_FOUND"
        chat = await running.client.post("/v1/chat/completions", json={"messages": 7}, headers=ANTHROPIC)
        assert "type" not in chat.json()  # a URL of OpenAI's has its shape, whoever calls it


async def test_the_context_of_another_servers_model_is_read_from_its_list(tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    shutil.copytree(REPOSITORY / "model_configs", configs)
    with scripted_upstream({}, "Hello", 20_000) as (url, _):
        tables = (("large", url), ("renamed", url), ("gone", "http://127.0.0.1:9/v1"))
        toml = "".join(f'[[models]]\nname = "{name}"\nupstream = "{address}"\n' for name, address in tables)
        (configs / "chat.toml").write_text(toml)
        async with in_process(tmp_path, configs=configs) as running:
            cards = {card["id"]: card for card in (await running.client.get("/v1/models")).json()["data"]}
            one = (await running.client.get("/v1/models/large", headers=ANTHROPIC)).json()
            google = (await running.client.get("/v1beta/models/large")).json()
    fields = ("max_model_len", "context_length", "max_input_tokens")
    said = {name: {cards[name][field] for field in fields} for name, _ in tables}
    assert said == {"large": {20_000}, "renamed": {20_000}, "gone": {None}}
    assert (one["max_input_tokens"], google["inputTokenLimit"]) == (20_000, 20_000)
