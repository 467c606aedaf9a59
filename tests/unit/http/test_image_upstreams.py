"""Image models of other servers, in a whole app: what is sent, stored, charged, refused and repeated."""

import asyncio
import base64
import io
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from PIL import Image
from starlette.responses import JSONResponse, Response

from server.accounts import report
from server.backends.image_upstream import drawing, transport
from server.data_folders import REPOSITORY
from tests.support.image_servers import CARD, ImageServer, image_server, images, stream
from tests.support.in_process import InProcess, in_process, png
from tests.support.marks import DRAWN, xmp_source
from tests.support.polling import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
ADMIN = {"Authorization": "Bearer admin"}
DRAW, EDIT = "/v1/images/generations", "/v1/images/edits"
FILE = """
family = "{family}"
steps = {steps}
native_area_px = 262144
{more}
[upstream]
url = "{url}"
model = "{model}"
api = "{api}"
{table}
[sampling]
guidance = 3.5
[[models]]
name = "{name}"
tier = "1K"
price = "0.30"
"""


def write_model(configs: Path, name: str, url: str, api: str, *, table: str = "", more: str = "") -> None:
    values = {"family": "beta", "steps": 8, "model": f"their/{name}", "api": api, "table": table, "more": more}
    (configs / f"{name}.toml").write_text(FILE.format(name=name, url=url, **values))


ALL = 'supports = ["text", "image", "negative_prompt", "guidance", "steps"]'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def other() -> AsyncIterator[ImageServer]:
    async with image_server() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory, other: ImageServer) -> AsyncIterator[InProcess]:
    home = tmp_path_factory.mktemp("home")
    (home / "admin-key").write_text("admin")
    configs = Path(shutil.copytree(REPOSITORY / "model_configs", home / "model_configs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THEIR_KEY", "secret-key")
        patch.setattr(transport, "CHECK_S", 0.2)
        patch.setattr(drawing, "RETRY_DELAYS_S", (0.05, 0.1))
        write_model(configs, "glide", other.url, "sglang", table=f'{ALL}\napi_key_env = "THEIR_KEY"')
        write_model(configs, "plain", other.url, "vllm", table='supports = ["text"]')
        true_cfg = f'{ALL}\nguidance_field = "true_cfg_scale"'
        write_model(configs, "small", other.url, "vllm", table=true_cfg, more="max_area_px = 262144")
        write_model(configs, "far", other.url, "darkroom", more='conditioning = "img2img"')
        write_model(configs, "gone", "http://127.0.0.1:9/v1", "vllm", table=ALL)
        async with in_process(home, configs=configs) as running:
            await eventually(lambda: all(host.ready for host in running.services.engines.image.hosts[1:]))
            yield running


@pytest.fixture(autouse=True)
def fresh(other: ImageServer) -> None:
    other.reset()


async def spent(app: InProcess) -> int:
    database = app.services.stores.database
    (balance,) = await asyncio.to_thread(report.balances, database)
    assert balance.held_units == 0
    return balance.spent_units


async def request(app: InProcess, model: str, path: str = DRAW, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": "a boat", "size": "512x512", "response_format": "b64_json", **fields}
    return await app.client.post(path, json=body)


def opened(answer: httpx.Response, index: int = 0) -> Image.Image:
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][index]["b64_json"])))


async def test_an_image_of_another_server_is_stored_charged_and_carries_our_metadata(
    app: InProcess, other: ImageServer
) -> None:
    before = await spent(app)
    answer = await request(app, "glide", seed=7, n=2, steps=5, guidance=2.0, negative_prompt="dull")
    assert await spent(app) == before + 3000
    assert sorted(int(each.fields["seed"]) for each in other.seen) == [7, 8]
    for each in other.seen:
        assert each.path == "/v1/images/generations"
        assert each.headers["authorization"] == "Bearer secret-key"
        assert {name: each.fields[name] for name in ("model", "prompt", "n", "size", "output_format")} == {
            "model": "their/glide", "prompt": "a boat", "n": 1, "size": "512x512", "output_format": "png",
        }  # fmt: skip
        assert (each.fields["num_inference_steps"], each.fields["guidance_scale"]) == (5, 2.0)
        assert each.fields["negative_prompt"] == "dull"
    assert len({each.headers["idempotency-key"] for each in other.seen}) == 2
    for index, seed in enumerate((7, 8)):
        image = opened(answer, index)
        assert image.size == (512, 512)
        assert image.getpixel((0, 0)) == (seed, 100, 0)
        assert (image.info["seed"], image.info["model"], image.info["checkpoint"]) == (
            str(seed), "glide", "their/glide",
        )  # fmt: skip
    again = await app.client.get(f"/v1/images/jobs/{answer.headers['x-darkroom-job']}")
    assert again.json()["state"] == "succeeded"


async def test_the_callers_trace_goes_on_to_the_other_server(app: InProcess, other: ImageServer) -> None:
    body = {"model": "glide", "prompt": "traced", "size": "512x512"}
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    assert (await app.client.post(DRAW, json=body, headers=headers)).status_code == 200
    assert trace in other.seen[0].headers["traceparent"]


async def test_files_have_the_format_that_was_asked_for(app: InProcess, other: ImageServer) -> None:
    answer = await request(app, "glide", output_format="jpeg", output_compression=80)
    assert opened(answer).format == "JPEG"
    assert xmp_source(base64.b64decode(answer.json()["data"][0]["b64_json"])) == DRAWN
    assert other.seen[0].fields["output_format"] == "png"


async def test_what_the_model_does_not_take_is_not_sent_and_refused_by_field(
    app: InProcess, other: ImageServer
) -> None:
    assert (await request(app, "plain")).status_code == 200
    assert not {"num_inference_steps", "guidance_scale", "negative_prompt"} & other.seen[0].fields.keys()
    for field, value in {
        "guidance": 2.0,
        "negative_prompt": "dull",
        "steps": 3,
        "image": "data:image/png;base64,",
    }.items():
        refused = await request(app, "plain", **{field: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    assert len(other.seen) == 1


async def test_references_are_sent_as_files(app: InProcess, other: ImageServer) -> None:
    files = [("image[]", ("a.png", png(64, 48, "red"), "image/png")), ("image[]", ("b.png", png(32, 32), "image/png"))]
    data = {"model": "glide", "prompt": "both", "size": "512x512", "seed": "3", "response_format": "b64_json"}
    answer = await app.client.post(EDIT, data=data, files=files)
    assert opened(answer).size == (512, 512)
    (seen,) = other.seen
    assert seen.path == "/v1/images/edits"
    assert (seen.fields["prompt"], seen.fields["seed"], seen.fields["num_inference_steps"]) == ("both", "3", "8")
    assert [name for name, _ in seen.files] == ["image[]", "image[]"]
    first = Image.open(io.BytesIO(seen.files[0][1]))
    assert (first.format, first.size, first.getpixel((63, 47))) == ("PNG", (64, 48), (255, 0, 0))


async def test_a_model_of_a_small_area_draws_that_and_is_scaled(app: InProcess, other: ImageServer) -> None:
    assert opened(await request(app, "small", size="1024x1024")).size == (1024, 1024)
    assert (other.seen[0].fields["size"], other.seen[0].fields["true_cfg_scale"]) == ("512x512", 3.5)


async def test_an_image_of_another_shape_is_refused_and_one_a_little_off_is_scaled(
    app: InProcess, other: ImageServer
) -> None:
    before = await spent(app)
    other.answer = partial(images, size=(512, 400))
    refused = await request(app, "glide")
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "upstream_failed")
    assert "drew 512x400 where 512x512 was asked for" in refused.json()["error"]["message"]
    assert await spent(app) == before
    other.answer = partial(images, size=(520, 512))
    assert opened(await request(app, "glide")).size == (512, 512)


def error(status: int, body: Any, **headers: str) -> Any:
    return lambda _: JSONResponse(body, status, headers)


OPENAI = {"message": "too much", "type": "invalid_request_error", "param": "guidance_scale", "code": "x"}
QUOTA = {"message": "no money", "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}
BLACK = {"message": "NaN", "type": "server_error", "param": None, "code": "invalid_picture"}
BLOCKED = {"message": "unsafe", "type": "image_generation_user_error", "param": None, "code": "moderation_blocked"}


@pytest.mark.parametrize(
    ("answer", "status", "code", "param", "retry_after"),
    [
        (error(400, {"error": OPENAI}), 400, "invalid_value", "guidance", None),
        (error(422, {"detail": [{"loc": ["body", "num_inference_steps"]}]}), 400, "invalid_value", "steps", None),
        (error(400, {"detail": "Invalid size"}), 400, "invalid_value", None, None),
        (error(400, {"error": BLOCKED}), 400, "moderation_blocked", None, None),
        (error(404, {"error": {**OPENAI, "param": "model"}}), 500, "upstream_failed", None, None),
        (error(401, {"error": OPENAI}), 500, "upstream_refused", None, None),
        (error(429, {"error": QUOTA}), 500, "upstream_refused", None, None),
        (error(429, {"error": OPENAI}, **{"Retry-After": "17"}), 429, "rate_limit_exceeded", None, "17"),
        (error(503, {"detail": "starting"}, **{"Retry-After": "9"}), 503, "upstream_busy", None, "9"),
        (error(500, {"detail": "oops"}), 500, "upstream_failed", None, None),
        (error(500, {"error": BLACK}), 500, "invalid_picture", None, None),
        (lambda _: Response("<h1>Bad gateway</h1>", 502), 500, "upstream_failed", None, None),
        (lambda _: Response("{nothing", 200), 500, "upstream_failed", None, None),
        (error(200, {"data": []}), 500, "upstream_failed", None, None),
        (error(200, {"data": [{"b64_json": "???"}]}), 500, "upstream_failed", None, None),
        (error(200, {"data": [{"b64_json": "aGVsbG8="}]}), 500, "upstream_failed", None, None),
    ],
)  # fmt: skip
async def test_errors_say_whose_fault_it_is_and_cost_nothing(
    app: InProcess, other: ImageServer, answer: Any, status: int, code: str, param: str | None, retry_after: str | None
) -> None:
    before = await spent(app)
    other.answer = answer
    refused = await request(app, "glide")
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code), refused.text
    assert refused.json()["error"]["param"] == param
    assert refused.headers.get("retry-after") == retry_after
    assert "127.0.0.1" not in refused.text
    assert (len(other.seen), await spent(app)) == (1, before)


async def test_a_server_that_is_down_is_503_and_operators_see_it(app: InProcess) -> None:
    before = await spent(app)
    refused = await request(app, "gone")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "upstream_busy")
    assert (refused.headers["retry-after"], await spent(app)) == ("5", before)
    ready = (await app.client.get("/readyz", headers=ADMIN)).json()
    assert ready["checkpoints"]["their/gone"] == {"state": "failed", "detail": "it does not answer (ConnectError)"}
    assert ready["checkpoints"]["their/glide"]["state"] == "loaded"
    names = [worker["name"] for worker in ready["image"]]
    assert names[0] == "image"
    assert len(names) == 3
    assert "127.0.0.1:9/v1" in names
    metrics = (await app.client.get("/metrics")).text
    assert 'darkroom_checkpoint_loaded{checkpoint="their/gone",engine="127.0.0.1:9/v1",kind="image"} 0.0' in metrics


async def test_a_model_says_what_it_supports(app: InProcess) -> None:
    cards = {card["id"]: card for card in (await app.client.get("/v1/models")).json()["data"]}
    assert (cards["plain"]["supports"], cards["plain"]["max_references"]) == (["text"], 0)
    assert (cards["far"]["supports"], cards["far"]["negative_prompt_above"]) == (CARD["supports"], 1.0)
    assert cards["plain"]["negative_prompt_above"] is None
    assert [cards[name]["reproducible"] for name in ("plain", "far")] == [None, False]
    assert (cards["far"]["max_references"], cards["far"]["price"]) == (1, "0.30")


async def test_another_darkroom_says_what_it_read_of_a_prompt(app: InProcess, other: ImageServer) -> None:
    cards = {card["id"]: card for card in (await app.client.get("/v1/models")).json()["data"]}
    assert (cards["far"]["long_prompts"], cards["far"]["limits"]["prompt_tokens"]) == (CARD["long_prompts"], 75)
    other.answer = stream
    drawn = await request(app, "far", long_prompt="chunk")
    assert (drawn.json()["parameters"]["long_prompt"], other.seen[-1].fields["long_prompt"]) == ("chunk", "chunk")
    assert drawn.headers["x-darkroom-truncated"].startswith("prompt: 14 of 89 tokens, from ")
    refused = await request(app, "plain", long_prompt="refuse")  # its server does not tell
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "long_prompt")


async def test_a_cancelled_call_closes_the_connection(app: InProcess, other: ImageServer) -> None:
    other.gate.clear()
    before = await spent(app)
    queued = await request(app, "glide", background=True, response_format="url")
    await eventually(lambda: len(other.seen) == 1)
    job = f"/v1/images/jobs/{queued.headers['x-darkroom-job']}"
    assert (await app.client.get(job)).json()["state"] == "running"
    assert (await app.client.post(f"{job}/cancel")).status_code == 200
    await eventually(lambda: other.left == 1)
    assert await spent(app) == before
    assert [host.jobs for host in app.services.engines.image.hosts] == [0, 0, 0]


@pytest.mark.parametrize("begun", [True, False])
async def test_a_cancelled_call_is_cancelled_at_another_darkroom(
    app: InProcess, other: ImageServer, *, begun: bool
) -> None:
    """It goes on without a connection, so it is told; where its id is not known yet, it is asked for."""
    before, wait = await spent(app), asyncio.Event()
    other.answer = partial(stream, wait=wait)
    if not begun:
        other.gate.clear()
    queued = await request(app, "far", background=True, response_format="url")
    await eventually(lambda: len(other.seen) == 1)
    if begun:
        await asyncio.sleep(0.2)
    await app.client.post(f"/v1/images/jobs/{queued.headers['x-darkroom-job']}/cancel")
    other.gate.set()
    await eventually(lambda: other.cancelled == ["img_there"])
    wait.set()
    assert len({each.headers["idempotency-key"] for each in other.seen}) == 1
    assert await spent(app) == before


async def test_a_job_past_its_time_is_504(app: InProcess, other: ImageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    creator = app.services.images.calls._creator
    monkeypatch.setattr(creator, "_rules", replace(creator._rules, time_limit_s=0.2))
    other.gate.clear()
    refused = await request(app, "glide")
    assert (refused.status_code, refused.json()["error"]["code"]) == (504, "timeout")
    assert "longer than the time limit of 0.2 s (DARKROOM_JOB_TIME_LIMIT_S)" in refused.json()["error"]["message"]
    await eventually(lambda: other.left == 1)


async def test_previews_of_another_darkroom_are_relayed(app: InProcess, other: ImageServer) -> None:
    other.answer = stream
    answer = await request(app, "far", stream=True, partial_images=2, output_format="webp", seed=4)
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert [event["type"].rpartition(".")[2] for event in events] == ["partial_image"] * 2 + ["completed"]
    for event in events:
        file = base64.b64decode(event["b64_json"])
        assert Image.open(io.BytesIO(file)).format == "WEBP"
        assert xmp_source(file) == DRAWN
    fields = other.seen[0].fields
    assert (fields["partial_images"], fields["stream"], fields["steps"], fields["guidance"]) == (2, True, 8, 3.5)


@pytest.mark.parametrize(("sides", "sent"), [((1000, 667), None), ((640, 480), "640x480")])
async def test_another_darkroom_follows_a_reference_to_the_pixel(
    app: InProcess, other: ImageServer, sides: tuple[int, int], sent: str | None
) -> None:
    """A size off the grid can't be asked for, but followed."""
    other.answer = partial(stream, size=sides)
    files = {"image": ("a.png", png(*sides, "red"), "image/png")}
    data = {"model": "far", "prompt": "blue", "response_format": "b64_json"}
    assert opened(await app.client.post(EDIT, data=data, files=files)).size == sides
    assert other.seen[0].fields.get("size") == sent


async def test_a_stream_that_breaks_is_joined_again_and_charged_once(app: InProcess, other: ImageServer) -> None:
    before = await spent(app)
    conflict = error(409, {"error": {"message": "runs", "type": "invalid_request_error", "code": "conflict"}})
    other.answers, other.answer = [partial(stream, cut_after=1), conflict], stream
    answer = await request(app, "far", stream=True, partial_images=1, n=2)
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    shown = [(event["type"].rpartition(".")[2], event["image_index"]) for event in events]
    assert sorted(shown) == [("completed", 0), ("completed", 1), ("partial_image", 0), ("partial_image", 1)]
    assert len({each.headers["idempotency-key"] for each in other.seen}) == 1
    assert (len(other.seen), await spent(app)) == (3, before + 3000)


async def test_a_server_that_stays_away_after_it_broke_off_is_an_error(app: InProcess, other: ImageServer) -> None:
    before = await spent(app)
    other.answer = partial(stream, cut_after=0)
    refused = await request(app, "far")
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "upstream_failed")
    assert (len(other.seen), await spent(app)) == (3, before)


async def test_other_servers_are_asked_once(app: InProcess, other: ImageServer) -> None:
    other.answer = partial(stream, cut_after=0)
    assert (await request(app, "glide")).status_code == 500
    assert len(other.seen) == 1


async def test_an_error_in_the_stream_has_its_meaning(app: InProcess, other: ImageServer) -> None:
    frame = f"data: {json.dumps({'error': {**OPENAI, 'param': 'size'}})}\n\n"
    other.answer = lambda _: Response(frame, media_type="text/event-stream")
    refused = await request(app, "far")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "size")


async def test_equal_calls_join_and_a_retry_is_replayed(app: InProcess, other: ImageServer) -> None:
    before = await spent(app)
    other.gate.clear()
    body = {"model": "glide", "prompt": "joined", "size": "512x512"}
    calls = [asyncio.create_task(app.client.post(DRAW, json=body, headers={"Idempotency-Key": "one"})) for _ in "ab"]
    await eventually(lambda: len(other.seen) == 1)
    other.gate.set()
    answers = [await call for call in calls]
    retried = await app.client.post(DRAW, json=body, headers={"Idempotency-Key": "one"})
    assert {answer.json()["data"][0]["url"] for answer in (*answers, retried)} == {answers[0].json()["data"][0]["url"]}
    assert (len(other.seen), await spent(app)) == (1, before + 3000)


async def test_a_darkroom_that_has_not_loaded_is_busy_until_it_has(app: InProcess, other: ImageServer) -> None:
    engine = app.services.engines.image
    spec = app.services.served.catalog.current.models["far"].checkpoint
    other.card = {**CARD, "supports": []}
    await eventually(lambda: engine.capabilities(spec) is None)
    refused = await request(app, "far")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "upstream_busy")
    assert other.seen == []
    other.card = dict(CARD)
    await eventually(lambda: engine.capabilities(spec) is not None)
    other.answer = stream
    assert (await request(app, "far")).status_code == 200


async def test_a_reload_adds_and_removes_servers(app: InProcess, other: ImageServer) -> None:
    configs = app.services.settings.model_configs
    engine = app.services.engines.image
    async with image_server() as third:
        write_model(configs, "new", third.url, "vllm", table=ALL)
        answer = await app.client.post("/admin/reload", headers=ADMIN)
        assert answer.status_code == 200, answer.text
        assert answer.json()["added"] == ["new"]
        assert opened(await request(app, "new")).size == (512, 512)
        assert len(engine.hosts) == 4
        swap = await app.client.post("/admin/swap", headers=ADMIN, json={"model": "new", "checkpoint": "x"})
        assert (swap.status_code, "new.toml" in swap.text) == (400, True)
        (configs / "new.toml").unlink()
        assert (await app.client.post("/admin/reload", headers=ADMIN)).json()["removed"] == ["new"]
        assert len(engine.hosts) == 3
        write_model(configs, "new", third.url, "vllm", table=f'{ALL}\napi_key_env = "NO_SUCH_KEY"')
        refused = await app.client.post("/admin/reload", headers=ADMIN)
        assert (refused.status_code, "NO_SUCH_KEY" in refused.text) == (400, True)
        (configs / "new.toml").unlink()
