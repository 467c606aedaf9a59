"""The libraries that `quantize` names load a chat checkpoint, which answers: on a CPU, with packages as published."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.packages import python_package
from tests.support.harness import REPOSITORY
from tests.support.tiny_chat_checkpoints import make_llama

pytestmark = pytest.mark.nightly
CODE = """
import asyncio, json, sys
from pathlib import Path
import torch
from pipelines.chat.engine import ChatEngine
from pipelines.protocol.chat import ChatJob, ChatSampling, ChatSpec

async def main(folder, quantize):
    engine = ChatEngine(torch.device("cpu"), cache_bytes=2**24)
    spec = ChatSpec("tiny", Path(folder), quantize=quantize)
    checkpoint = await engine.load(spec)
    greedy, messages = ChatSampling(temperature=0.0), ({"role": "user", "content": "Hi"},)
    job = ChatJob("1", spec, messages, 0, 200.0, max_tokens=8, sampling=greedy)
    last = [event async for event in engine.submit(job)][-1]
    weight = checkpoint.model.model.layers[0].mlp.up_proj.weight
    print(json.dumps([type(weight).__name__, type(last).__name__, checkpoint.batching.unbatched_reason]))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("quantize", "package", "weight"), [("int8", "torchao", "Int8Tensor"), ("nf4", "bitsandbytes", "Params4bit")]
)
def test_a_quantized_checkpoint_answers(quantize: str, package: str, weight: str, tmp_path: Path) -> None:
    folder = make_llama(tmp_path / "llama")
    path = os.pathsep.join([str(REPOSITORY), str(python_package(package))])
    ran = subprocess.run(
        [sys.executable, "-c", CODE, str(folder), quantize], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == [weight, "ChatFinished", None]
