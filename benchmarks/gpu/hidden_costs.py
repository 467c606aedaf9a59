"""What changes a design and no other part shows: attention that is wrong, waits inside a step, launches."""

import collections
import functools
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.gpu.engine import serving
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.networks import flux_pipeline, networks
from benchmarks.gpu.report import Report
from pipelines.device.graph_capture import CudaCapture

KV_HEADS = 4  # fewer than eight: where cuDNN's attention was seen to corrupt greedy answers on a B200
ROUNDING = 2.0  # of what plain arithmetic in the same format is off from float32: kernels round in other orders


async def chats(machine: Machine, report: Report) -> None:
    """The logits of a model with four heads for keys and values, by each backend of attention, against float32."""
    width, layers = (64, 2) if machine.tiny else (2048, 12)
    config = Qwen2Config(
        vocab_size=256 if machine.tiny else 32000, hidden_size=width, intermediate_size=2 * width,
        num_hidden_layers=layers, num_attention_heads=4 * KV_HEADS, num_key_value_heads=KV_HEADS,
    )  # fmt: skip
    model = machine.make(lambda: Qwen2ForCausalLM(config))
    prompt = torch.arange(2, 34 if machine.tiny else 514, device=machine.device)[None] % config.vocab_size
    plain, answer = _greedy(model, prompt, SDPBackend.MATH)
    exact, _ = _greedy(model.float(), prompt, SDPBackend.MATH)
    model.to(machine.dtype)
    rounding = max(_off(plain, exact), torch.finfo(torch.float32).eps)
    report.add("plain arithmetic, off from float32", rounding, tokens=len(answer))
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            logits, tokens = _greedy(model, prompt, backend)
        except RuntimeError as error:  # "No available kernel"
            report.add(f"attention by {backend.name}", "none", why=str(error).splitlines()[0][:200])
            continue
        off = _off(logits, exact)
        right = off < ROUNDING * rounding or (machine.dtype == torch.float32 and off < 1e-4)
        report.add(f"{backend.name} is right", right, goal="True", off=off, same_tokens=tokens == answer)


def _off(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the root of the mean square of the difference, of the logits' deviation."""
    return float(((logits - exact) / exact.std()).square().mean().sqrt())


@torch.inference_mode()
def _greedy(model: Any, prompt: torch.Tensor, backend: SDPBackend) -> tuple[torch.Tensor, list[int]]:
    """Return the logits after the prompt, and a greedy answer of 32 tokens."""
    with sdpa_kernel(backend):
        logits = model(prompt).logits[0, -1].float()
        tokens = model.generate(prompt, max_new_tokens=32, do_sample=False)
    return logits, tokens[0, prompt.shape[1] :].tolist()


async def waits(machine: Machine, report: Report) -> None:
    """How often the host waits for the device in an image of FLUX.1, by place. A step should have its fence alone."""
    with serving(machine, flux_pipeline(machine)) as bench:
        await bench.draw(bench.job())
        places: collections.Counter[str] = collections.Counter()
        if machine.is_gpu and not machine.tiny:
            torch.cuda.set_sync_debug_mode("warn")
        show = warnings.showwarning
        warnings.showwarning = lambda *_, **__: places.update([_caller()])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                steps = bench.job().sampling.steps
                await bench.draw(bench.job(prompt="a boat that nobody has drawn"))
        finally:
            warnings.showwarning = show
            if machine.is_gpu and not machine.tiny:
                torch.cuda.set_sync_debug_mode("default")
    report.add("steps of an image", steps)
    report.add("waits of it", places.total(), each_step=places.total() / steps)
    for place, count in places.most_common(10):
        report.add(f"waits at {place}", count)


def _caller() -> str:
    """Return the innermost place of the stack that is ours or a model library's."""
    frames = [frame for frame in traceback.extract_stack() if Path(frame.filename).name != "warnings.py"]
    named = [frame for frame in frames if "/torch/" not in frame.filename and "hidden_costs" not in frame.filename]
    return f"{Path(named[-1].filename).name}:{named[-1].lineno}" if named else "torch"


async def graphs(machine: Machine, report: Report) -> None:
    """A step of each network at 512 x 512, launched kernel by kernel and as a CUDA graph: SDXL's should gain."""
    for network in networks(machine):
        denoiser, inputs = machine.make(network.build), network.inputs(1, 64 if machine.tiny else 512)
        with torch.inference_mode():
            plain_s = machine.timed(functools.partial(denoiser, **inputs))
            report.add(f"{network.name}: a step", plain_s, "s")
            if machine.is_gpu and not machine.tiny:
                graph_s = machine.timed(CudaCapture()(functools.partial(denoiser, **inputs)))
                report.add(f"{network.name}: a step as a graph", graph_s, "s", gain=plain_s / graph_s)
        del denoiser
        machine.free()
