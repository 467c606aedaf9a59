"""Sampling that a request leaves out is the catalog's, else that of the checkpoint's makers, else OpenAI's."""

import json
from pathlib import Path

import pytest

from pipelines.checkpoints.memory.chat_files import read_sampling_defaults
from pipelines.protocol.chat import ChatSampling, ChatSpec
from server.catalog.chat import read_chat
from server.flows.chat.parse import parse_chat
from server.flows.chat.request import to_body

MADE = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2]}
MESSAGES = [{"role": "user", "content": "Hi"}]


def folder(root: Path, values: object) -> Path:
    (root / "qwen").mkdir(exist_ok=True)
    (root / "qwen/generation_config.json").write_text(json.dumps(values))
    return root / "qwen"


def spec(root: Path, toml: str) -> ChatSpec:
    (root / "chat.toml").write_text(toml)
    errors: list[str] = []
    model = read_chat(root / "chat.toml", root, (), errors).models["m"]
    assert not errors
    assert model.spec is not None
    return model.spec


def test_a_generation_config_says_how_its_makers_sample(tmp_path: Path) -> None:
    assert read_sampling_defaults(folder(tmp_path, MADE)) == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert (
        read_sampling_defaults(folder(tmp_path, {"temperature": None, "top_p": "x", "min_p": 7, "top_k": True})) == {}
    )
    assert read_sampling_defaults(folder(tmp_path, {**MADE, "do_sample": False}))["temperature"] == 0.0
    assert read_sampling_defaults(folder(tmp_path, ["no object"])) == {}
    assert read_sampling_defaults(tmp_path / "none") == {}


def test_the_models_table_goes_before_the_files_and_both_before_the_makers(tmp_path: Path) -> None:
    folder(tmp_path, MADE)
    model = '[[models]]\nname = "m"\ncheckpoint = "qwen"\n'
    assert dict(spec(tmp_path, model).defaults) == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    named = spec(tmp_path, f"[defaults]\ntop_k = 5\ntop_p = 0.5\n{model}[models.defaults]\ntop_p = 0.8\n")
    assert dict(named.defaults) == {"temperature": 0.6, "top_k": 5, "top_p": 0.8}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [({}, (0.6, 20)), ({"temperature": 1.0}, (1.0, 20)), ({"top_k": 0, "temperature": 0}, (0.0, 0))],
)
def test_what_a_request_sends_goes_before_defaults(sent: dict[str, float], expected: tuple[float, int]) -> None:
    request = parse_chat({"messages": MESSAGES, **sent})
    sampling = request.sampling.with_defaults((("temperature", 0.6), ("top_k", 20)))
    assert (sampling.temperature, sampling.top_k) == expected


def test_a_job_that_says_all_takes_no_defaults() -> None:
    assert ChatSampling(temperature=1.0).with_defaults((("temperature", 0.6),)).temperature == 1.0


def test_an_upstream_is_sent_no_sampling_that_the_client_did_not_send() -> None:
    assert not {"temperature", "top_p"} & to_body(parse_chat({"messages": MESSAGES})).keys()
    assert to_body(parse_chat({"messages": MESSAGES, "temperature": 1}))["temperature"] == 1
