"""What a checkpoint can do, as its class and the config of its codec announce it; warmup tries that."""

from collections.abc import Container, Mapping
from typing import Any, Final, Literal

from pipelines.catalog.call_signature import PipelineSource
from pipelines.catalog.conditioning import MODES
from pipelines.catalog.modular import modular_class
from pipelines.families.generic import Call, Config, Family
from pipelines.families.registry import family_of
from pipelines.families.task import Task
from pipelines.protocol.images import CheckpointSpec
from pipelines.protocol.messages import Capabilities

GREY, RGBA = 1, 4  # channels
ReadMode = Literal["RGB", "RGBA", "L"]
UPSCALES: Final = Capabilities(  # of an upscaler
    text=False, references=0, mask=False, second_pass=True, negative_prompt=False, guidance=False, any_steps=False,
    prompt=False,
)  # fmt: skip


def drawn_tasks(class_name: str, codec: Config, source: PipelineSource) -> tuple[Call | None, frozenset[Task]]:
    """Return the parameters of a class's call, None if the library has no such class, with the tasks that the class and
    its siblings draw. A codec with means has latents of another scale, at which no image can start late."""
    call = source.parameters(class_name)
    if call is None and class_name and (modular := modular_class(source.folder, class_name)) is not None:
        return modular.inputs, modular.tasks
    methods = source.methods(class_name) if codec.get("latents_mean") is None else ()
    return call, frozenset(family_of(class_name).drawn_by(class_name, call or {}, methods, source.has))


def declared_capabilities(
    family: Family, call: Call, tasks: Container[Task], spec: CheckpointSpec, config: Config, denoiser_config: Config
) -> Capabilities:
    """Return the capabilities that the pipeline classes announce, before they are tried, without those of its codec.
    `call` is that of the checkpoint's own class, `config` that of the pipeline."""
    return Capabilities(
        text=Task.TEXT in tasks,
        references=spec.max_references if MODES[spec.conditioning].task in tasks else 0,
        mask=Task.INPAINT in tasks,
        second_pass=Task.REDRAW in tasks or Task.INPAINT in tasks,
        negative_prompt=family.takes_negative_prompt(call, config),
        guidance=family.takes_guidance(call, config, denoiser_config),
        any_steps=True,
        prompt="prompt" in call,
        layers=family.layers is not None,
        at_once=family.at_once,
    )


def read_mode(codec: Mapping[str, Any]) -> ReadMode:
    """Return the mode in which a codec with this config takes an image. Without a codec, images are colours."""
    channels = _first_value(codec, "in_channels", "input_channels")
    return "RGBA" if channels == RGBA else "L" if channels == GREY else "RGB"


def draws_alpha(codec: Mapping[str, Any]) -> bool:
    """Return whether a codec with this config draws images with an alpha channel."""
    return _first_value(codec, "out_channels", "input_channels") == RGBA


def _first_value(codec: Mapping[str, Any], *names: str) -> object:
    """Return the value of the first of these names that a config has: some codecs call both sides by one name."""
    return next((codec[name] for name in names if name in codec), None)


def codec_scale(codec: Config) -> int:
    """Return how many pixels a latent has along a side, computed from a codec's config as diffusers' pipelines do; 8 if
    it does not say."""
    for key in ("block_out_channels", "encoder_block_out_channels"):
        if isinstance(blocks := codec.get(key), list):
            return int(2 ** (len(blocks) - 1))
    doublings = codec.get("temperal_downsample")  # sic, of video codecs
    return int(2 ** len(doublings)) if isinstance(doublings, list) else 8
