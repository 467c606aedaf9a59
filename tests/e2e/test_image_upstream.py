"""Image models of an upstream server, which is a second Darkroom here."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from tests.support.harness import Server, assert_clean, charges, count_rows, suspended, until
from tests.support.in_process import png
from tests.support.policies import write_policy
from tests.support.tiny_checkpoints import make_sd
from tests.support.tiny_classifiers import make_image_classifier
from tests.support.tiny_server import CATALOG, write_tiny_catalog

pytestmark = pytest.mark.nightly

NEAR, FAR = "alpha-image-2-count", "far"  # the model's name there, and here
WATCHED = "far-watched"  # the same, in a group whose images are moderated
DRAWN: dict[str, Any] = {"prompt": "a boat", "size": "256x256", "response_format": "b64_json"}
SEEDED: dict[str, Any] = {"seed": 5, "steps": 3, "guidance": 2.0}
UPSTREAM = """
family = "{family}"
conditioning = "img2img"
steps = 4
[upstream]
url = "{base}/v1"
model = "alpha-image-2-count"
api = "darkroom"
api_key_env = "FAR_KEY"
[[models]]
name = "{name}"
tier = "1K"
price = "0.70"
"""


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that draws."""
    own = tmp_path_factory.mktemp("near")
    make_sd(own / "weights" / "tiny")
    (own / "configs").mkdir()
    configs = write_tiny_catalog(own / "configs")
    running = Server(own / "home", own / "weights", configs, {"retry_grace_s": "0.2"}).start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, near: Server) -> Iterator[Server]:
    """A server without checkpoints, whose models the other one draws. It has a policy, and the other one has none."""
    own = tmp_path_factory.mktemp("gateway")
    (own / "configs").mkdir()
    configs = write_tiny_catalog(own / "configs")
    for name, family in ((FAR, "alpha"), (WATCHED, "beta")):
        (configs / f"{name}.toml").write_text(UPSTREAM.format(base=near.base, name=name, family=family))
    (configs / "tiny.toml").unlink()
    (configs / "catalog.toml").write_text(f'{CATALOG.replace(NEAR, FAR)}beta = "beta-image-per-call"\n')
    make_image_classifier(own / "grim")
    settings = {"moderation": str(write_policy(own, "output"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_KEY", near.key)
        running = Server(own / "home", own / "weights", configs, settings).start()
    yield running
    running.kill()


def opened(data: str | None) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data or "")))


def generate(server: Server, **fields: Any) -> httpx.Response:
    with server.http() as client:
        return client.post("/v1/images/generations", json={**DRAWN, **fields})


def test_the_same_image_comes_from_both(gateway: Server, near: Server) -> None:
    before = charges(gateway), charges(near)
    (mine,), (theirs,) = (
        generate(server, model=model, **SEEDED).json()["data"] for server, model in ((gateway, FAR), (near, NEAR))
    )
    assert opened(mine["b64_json"]).tobytes() == opened(theirs["b64_json"]).tobytes()
    assert mine["seed"] == theirs["seed"]
    assert (charges(gateway), charges(near)) == (before[0] + 1, before[1] + 2)


def test_several_images_are_one_call_there(gateway: Server, near: Server) -> None:
    before = charges(gateway), charges(near)
    images = generate(gateway, n=2, **SEEDED).json()["data"]
    infos = [opened(image["b64_json"]).info for image in images]
    assert [(info["model"], info["checkpoint"], info["seed"], info["guidance"]) for info in infos] == [
        (FAR, NEAR, "5", "2.0"),
        (FAR, NEAR, "6", "2.0"),
    ]
    assert (charges(gateway), charges(near)) == (before[0] + 1, before[1] + 1)
    assert_clean(gateway)


def test_an_edit_with_a_mask_is_the_same_too(gateway: Server, near: Server) -> None:
    mask = Image.new("L", (256, 256))
    mask.paste(255, (0, 0, 128, 256))
    file = io.BytesIO()
    mask.save(file, "PNG")
    image = png(256, 256, "teal")
    pixels = []
    for server, model in ((gateway, FAR), (near, NEAR)):
        for options in ({}, {"mask": ("mask.png", file.getvalue(), "image/png")}):
            answer = server.openai().images.edit(
                model=model, image=("a.png", image, "image/png"), prompt="a boat", size="256x256",
                response_format="b64_json", extra_body={**SEEDED, "strength": 0.7}, **options,  # type: ignore[arg-type]
            )  # fmt: skip
            pixels.append(opened(answer.data[0].b64_json).tobytes())  # type: ignore[index]
    assert pixels[:2] == pixels[2:]
    assert pixels[0] != pixels[1]


def test_previews_are_relayed(gateway: Server) -> None:
    events = list(
        gateway.openai().images.generate(model=FAR, prompt="a boat", size="256x256", stream=True, partial_images=2)
    )
    assert [event.type for event in events] == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert all(opened(event.b64_json).format == "PNG" for event in events)


def test_what_the_other_server_refuses_is_refused_by_field(gateway: Server) -> None:
    before = charges(gateway)
    with pytest.raises(openai.BadRequestError) as raised:
        gateway.openai().images.generate(model=FAR, prompt="a boat", size="256x256", extra_body={"loras": {"x": 1.0}})
    assert raised.value.param == "loras"
    assert charges(gateway) == before


def test_a_cancelled_call_ends_there_too(gateway: Server, near: Server) -> None:
    before = charges(gateway), charges(near)
    worker = near.readiness()["worker_pid"]
    with suspended(worker), gateway.http() as client, near.http() as there:
        job = client.post("/v1/images/generations", json={**DRAWN, "background": True}).headers["x-darkroom-job"]
        until(lambda: near.readiness()["jobs"] == 1)
        assert client.post(f"/v1/images/jobs/{job}/cancel").json()["state"] == "cancelled"
        until(lambda: there.get("/v1/images/jobs?limit=1").json()["data"][0]["state"] == "cancelled")
    until(lambda: near.readiness()["jobs"] == 0)
    assert (charges(gateway), charges(near)) == before


def count_calls(server: Server) -> int:
    return count_rows(server, "calls")


def test_a_prompt_that_the_policy_refuses_does_not_leave(gateway: Server, near: Server) -> None:
    before = charges(gateway), count_calls(near)
    for fields in ({"prompt": "an ASSAULT  rifle"}, {"negative_prompt": "assault rifle"}):
        refused = generate(gateway, **fields)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "moderation_blocked")
        assert refused.json()["error"]["moderation_details"]["moderation_stage"] == "input"
    assert (charges(gateway), count_calls(near)) == before
    assert_clean(gateway)


def test_an_image_of_the_other_server_is_moderated_as_a_local_one(gateway: Server, near: Server) -> None:
    """The other server has drawn it, and charges for it."""
    before, files = (charges(gateway), charges(near)), set((gateway.home / "results").rglob("*.png"))
    refused = generate(gateway, model=WATCHED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "moderation_blocked")
    assert "nothing-grim" in refused.json()["error"]["message"]
    assert refused.json()["error"]["moderation_details"]["moderation_stage"] == "output"
    assert (charges(gateway), charges(near)) == (before[0], before[1] + 1)
    assert set((gateway.home / "results").rglob("*.png")) == files
    assert_clean(gateway)


def test_a_reference_that_the_policy_refuses_does_not_leave(gateway: Server, near: Server) -> None:
    write_policy(gateway.home.parent, "input")
    assert gateway.darkroom("policy", "reload").returncode == 0
    try:
        before = charges(gateway), count_calls(near)
        with pytest.raises(openai.BadRequestError) as raised:
            gateway.openai().images.edit(
                model=WATCHED, image=("a.png", png(256, 256, "teal"), "image/png"), prompt="a boat", size="256x256"
            )
        assert raised.value.code == "moderation_blocked"
        assert (charges(gateway), count_calls(near)) == before
        assert generate(gateway, model=WATCHED).status_code == 200  # without a reference
    finally:
        write_policy(gateway.home.parent, "output")
        assert gateway.darkroom("policy", "reload").returncode == 0


def test_a_retry_is_the_same_image_and_one_charge_at_both(gateway: Server, near: Server) -> None:
    before = charges(gateway), charges(near)
    with gateway.http() as client:
        answers = [
            client.post("/v1/images/generations", json=DRAWN, headers={"Idempotency-Key": "again"}) for _ in range(2)
        ]
    first, second = ([image["b64_json"] for image in answer.json()["data"]] for answer in answers)
    assert first == second
    assert answers[0].headers["x-darkroom-job"] == answers[1].headers["x-darkroom-job"]
    assert (charges(gateway), charges(near)) == (before[0] + 1, before[1] + 1)


def test_operators_see_the_other_server(gateway: Server, near: Server) -> None:
    at = near.base.removeprefix("http://") + "/v1"
    workers = gateway.readiness()["image"]
    assert [(worker["name"], worker["ready"]) for worker in workers] == [("image", True), (at, True)]
    shown = gateway.darkroom("models").stdout
    assert f"{NEAR} at {near.base}/v1" in " ".join(shown.split())
    with gateway.http() as client:
        card = client.get(f"/v1/models/{FAR}").json()
    assert {"text", "image", "mask", "guidance", "steps"} <= set(card["supports"])
    assert near.base in gateway.darkroom("doctor").stdout


def test_without_the_other_server_calls_are_refused_uncharged(gateway: Server, near: Server) -> None:
    """The last test: it kills that server."""
    before = charges(gateway)
    near.kill()
    refused = generate(gateway)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "upstream_busy")
    assert refused.headers["retry-after"] == "5"
    assert charges(gateway) == before
    assert_clean(gateway)
