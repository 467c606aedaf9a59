"""Tiny checkpoints, and an engine to draw with them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.device.offline import quiet_libraries

quiet_libraries()

import torch  # noqa: E402
from peft import LoraConfig  # noqa: E402
from peft.utils import get_peft_model_state_dict  # noqa: E402
from torch._lazy import ts_backend  # noqa: E402

from pipelines.chat.engine import ChatEngine  # noqa: E402
from pipelines.images.loading.load import load_checkpoint  # noqa: E402
from pipelines.protocol.chat import ChatJob, ChatSpec  # noqa: E402
from pipelines.protocol.images import CheckpointSpec, ImageJob, RawImage, SamplingDefaults  # noqa: E402
from tests.engines.chat_jobs import GREEDY  # noqa: E402
from tests.engines.chat_jobs import MAKERS as CHAT_MAKERS  # noqa: E402
from tests.engines.device import DEVICE  # noqa: E402
from tests.support import tiny_checkpoints  # noqa: E402
from tests.support.image_jobs import image_job  # noqa: E402

MAKERS = {"sd": tiny_checkpoints.make_sd, "sd3": tiny_checkpoints.make_sd3, "klein": tiny_checkpoints.make_klein}


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], CheckpointSpec]:
    """The spec of a tiny checkpoint by its name, drawn at 64 x 64."""
    made: dict[str, Path] = {}

    def make(name: str) -> CheckpointSpec:
        if name not in made:
            made[name] = MAKERS[name](tmp_path_factory.mktemp("tiny") / name)
        native = name == "klein"
        return CheckpointSpec(
            name=name,
            path=made[name],
            config=None,
            family="beta" if native else "alpha",
            conditioning="native" if native else "img2img",
            max_references=16 if native else 1,
            native_area_px=64 * 64,
            max_area_px=96 * 96,
            sampling=SamplingDefaults(guidance=2.0, refine_strength=0.5),
        )

    return make


@pytest.fixture
def job(spec: Callable[[str], CheckpointSpec]) -> Callable[..., ImageJob]:
    """A small job for a tiny checkpoint; any field of it or of its sampling can be given."""

    def make(name: str, **fields: object) -> ImageJob:
        return image_job(**{"checkpoint": spec(name), **fields})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def second() -> torch.device:
    """Torch's lazy device, a second one that every build has: mixing it with the CPU fails."""
    ts_backend.init()
    return torch.device("lazy")


@pytest.fixture(scope="session")
def adapter(spec: Callable[[str], CheckpointSpec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA of the tiny UNet and its text encoder with random weights, in the format that pipelines save."""
    checkpoint = load_checkpoint(spec("sd"), DEVICE)
    unet = checkpoint.denoiser
    torch.manual_seed(4)
    unet.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    folder = tmp_path_factory.mktemp("loras")
    text_encoder = checkpoint.components["text_encoder"]
    text_encoder.add_adapter(LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    checkpoint.pipeline_class.save_lora_weights(
        folder,
        unet_lora_layers=get_peft_model_state_dict(unet),
        text_encoder_lora_layers=get_peft_model_state_dict(text_encoder),
        weight_name="sketch.safetensors",
    )
    return folder / "sketch.safetensors"


@pytest.fixture(scope="session")
def chat_spec(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ChatSpec]:
    """The spec of a tiny chat checkpoint by its name."""
    made: dict[str, Path] = {}

    def make(name: str, **fields: object) -> ChatSpec:
        if name not in made:
            made[name] = CHAT_MAKERS[name](tmp_path_factory.mktemp("chat") / name)
        exact = {} if DEVICE.type == "cpu" else {"dtype": "float32"}  # answers are compared with the bare model's
        return ChatSpec(name, made[name], **(exact | fields))  # type: ignore[arg-type]

    return make


@pytest.fixture
def chat_job(chat_spec: Callable[..., ChatSpec]) -> Callable[..., ChatJob]:
    """A small chat, greedy by default; any field can be given."""
    count = iter(range(10_000))

    def make(text: str = "Hello", model: str = "qwen", **fields: object) -> ChatJob:
        plain = ChatJob(
            id=f"job-{next(count)}", checkpoint=chat_spec(model), messages=({"role": "user", "content": text},), seed=3,
            time_limit_s=240, max_tokens=24, sampling=GREEDY,
        )  # fmt: skip
        return replace(plain, **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture
async def chat_engine() -> ChatEngine:
    return ChatEngine(DEVICE, cache_bytes=2**28)


def plain_image(width: int = 64, height: int = 64, colour: tuple[int, int, int] = (200, 100, 50)) -> RawImage:
    return RawImage(width, height, "RGB", bytes(colour) * (width * height))


def split_image(*, upright: bool) -> RawImage:
    """64 x 64, black and orange, cut upright or across: an untrained codec's group norms erase a plain colour."""
    black, orange = bytes(3), bytes((255, 128, 0))
    rows = (black * 32 + orange * 32) * 64 if upright else black * 64 * 32 + orange * 64 * 32
    return RawImage(64, 64, "RGB", rows)


def left_half(width: int = 64, height: int = 64) -> RawImage:
    """A mask for repainting the left half."""
    return RawImage(width, height, "L", (b"\xff" * (width // 2) + b"\0" * (width // 2)) * height)
