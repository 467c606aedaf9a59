"""What a file of weights is, by the names and shapes in its header, if it is no image checkpoint: where it belongs.

Names are those that the trainers of each kind write; nothing here goes by a file's name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipelines.checkpoints.weight_file.adapters import classify_tensors
from pipelines.checkpoints.weight_file.header import Header, Tensor
from pipelines.checkpoints.weight_file.layout import WRAPPED_IN
from pipelines.checkpoints.weight_file.upscalers import upscaler_layout

MOST_OF_AN_EMBEDDING: Final = 4  # tensors: a word's vectors, and trainers' counters
OF_EMBEDDINGS: Final = re.compile(r"emb_params|(clip_[lgh]|t5(xxl)?)(_out)?|\*|<.+>")
MOST_VECTORS: Final = 512  # of a word
PREFIX: Final = re.compile(r"^(first_stage_model|vae|model\.diffusion_model|module|params(_ema)?)\.")

DENOISERS: Final = re.compile(  # a file with one of these is of no other kind
    rf"^((model\.diffusion_model|model|{WRAPPED_IN})\.)*"
    r"(input_blocks\.\d+\.\d+\.(transformer_blocks|in_layers)|double_blocks\.|joint_blocks\.|"
    r"down_blocks\.\d+\.(attentions|resnets)|(single_)?transformer_blocks\.|noise_refiner\.|context_refiner\.|"
    r"caption_projection\.|t_embedder\.|final_layer\.linear|time_text_embed\.|img_in\.|x_embedder\.)"
)


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: its name, and where in the catalog it belongs."""

    name: str
    place: str

    def __str__(self) -> str:
        return f"{self.name}: {self.place}"


IN_CHECKPOINT: Final = "name it beside a checkpoint of the same kind"
VAE: Final = FileKind("a VAE alone", f"{IN_CHECKPOINT}, with the key `vae`")
TINY_VAE: Final = FileKind(
    "a tiny autoencoder in the names of its first publisher",
    "take its diffusers folder (AutoencoderTiny), and name it beside a checkpoint with the key `vae`",
)
TEXT_ENCODER: Final = FileKind("a text encoder alone", f"{IN_CHECKPOINT}, with the key `text_encoder`")
LANGUAGE_MODEL: Final = FileKind(
    "a language model",
    "for chats name its whole folder, or a .gguf file, in chat.toml; as the text encoder of an image checkpoint, with "
    "the key `text_encoder`",
)
IMAGE_ENCODER: Final = FileKind(
    "an image encoder", "an IP-Adapter needs it: name its transformers folder as `image_encoder` in [[ip_adapters]]"
)
CONTROLNET: Final = FileKind(
    "a ControlNet", "name its diffusers folder, which has a config.json, in [[controlnets]] of a checkpoint"
)
CONTROL_LORA: Final = FileKind("a control-LoRA of a ControlNet", "nothing here takes it: take the whole ControlNet")
LLLITE: Final = FileKind("a ControlNet-LLLite", "nothing here takes it: take a ControlNet of that kind of map")
PULID: Final = FileKind("a PuLID adapter", "it draws from a face's embedding, which calls here do not have")
REDUX: Final = FileKind("a Redux image encoder", "it prepares embeddings for another pipeline: nothing here takes it")
T2I_ADAPTER: Final = FileKind("a T2I-Adapter", "name its diffusers folder in [[t2i_adapters]] of a checkpoint")
IP_ADAPTER: Final = FileKind("an IP-Adapter", "name it in [[ip_adapters]] of a checkpoint")
CONTROLNET_FOLDER: Final = FileKind("a ControlNet", "name it in [[controlnets]] of a checkpoint")
IMAGE_ENCODER_FOLDER: Final = FileKind(
    "an image encoder", "an IP-Adapter needs it: name it as `image_encoder` in [[ip_adapters]] of a checkpoint"
)
DENOISER: Final = FileKind("a denoiser alone", f"{IN_CHECKPOINT}, with the key `denoiser`")
EMBEDDING: Final = FileKind(
    "a textual-inversion embedding", "put it into the folder that `embedding_folder` in [runtime] of a checkpoint names"
)
UPSCALER: Final = FileKind("an upscaler", 'serve it as a model of its own, with conditioning = "upscale"')
OTHER_UPSCALER: Final = FileKind(
    "an upscaler", "its network is not ESRGAN's or Real-ESRGAN's, or enlarges nothing, and no other is loaded"
)
MOTION: Final = FileKind("a motion module", "it draws videos, and Darkroom images")
VIDEO: Final = FileKind("a video checkpoint", "it draws videos, and Darkroom images")
SVDQUANT: Final = FileKind(
    "an SVDQuant checkpoint", "its kernels are code of a hub, which nothing here runs: use the bf16 or fp8 file"
)
CLASSIFIER: Final = FileKind("an image classifier", "name its transformers folder in the moderation policy")


def kind_by_config(config: Mapping[str, Any]) -> FileKind | None:
    """Return the kind of a folder with one component, by the class in its config; None for a class that is not
    known."""
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    class_name = str(config.get("_class_name") or named)
    return next((kind for pattern, kind in BY_CLASS if pattern.search(class_name)), None)


def kind_by_header(header: Header) -> FileKind | None:
    """Return the kind of a file by its header; None for an image checkpoint, or a file of no known kind."""
    names = [tensor.name for tensor in header.tensors]
    plain = [PREFIX.sub("", name) for name in names]
    is_denoiser = _has(names, DENOISERS)
    for pattern, kind in ANYWHERE:
        if _has(plain, pattern) and not (is_denoiser and kind in {UPSCALER, T2I_ADAPTER}):
            return _upscaler(header) if kind is UPSCALER else kind
    contents = classify_tensors(names)
    if contents.layers and 2 * contents.layers > len(contents.replaced):  # it may bring some weights of the model
        return _adapter(contents.kind)
    if _has(names, SVDQUANT_NAMES):
        return SVDQUANT
    if not names or is_denoiser:
        return None
    for pattern, kind in WHOLLY:
        if sum(pattern.search(name) is not None for name in plain) >= SHARE * len(names):
            return _upscaler(header) if kind is UPSCALER else kind
    return EMBEDDING if _is_embedding(header.tensors) else None


def _upscaler(header: Header) -> FileKind:
    return UPSCALER if upscaler_layout(header.tensors) is not None else OTHER_UPSCALER


def _adapter(kind: str) -> FileKind:
    article = "an" if kind[:1] in "AIO" else "a"
    place = "put it into the folder that `lora_folder` in [runtime] of a checkpoint names, or name it in `loras` there"
    return FileKind(f"{article} {kind} adapter", place)


BY_CLASS: Final = (  # of diffusers, or among `architectures` of transformers
    (re.compile(r"ControlNet"), CONTROLNET_FOLDER),
    (re.compile(r"^T2IAdapter$"), T2I_ADAPTER),
    (re.compile(r"^MotionAdapter$"), MOTION),
    (re.compile(r"^(Auto|V|VQ|Asymmetric|Consistency)\w*(Autoencoder|encoder|Model|VAE|Decoder)\w*$"), VAE),
    (re.compile(r"(Transformer\w*Model|UNet\w*Model|Transformer\w*)$"), DENOISER),
    (re.compile(r"VisionModel"), IMAGE_ENCODER_FOLDER),
    (re.compile(r"^(CLIPText|T5Encoder|UMT5Encoder|MT5Encoder)"), TEXT_ENCODER),
    (re.compile(r"ForImageClassification$"), CLASSIFIER),
)
SHARE: Final = 0.9  # of a file's tensors that are of the kind
SVDQUANT_NAMES: Final = re.compile(
    r"(^|\.)(single_)?transformer_blocks\..*\.(wscales|smooth_factor|proj_down|qweight)$"
)
VISION: Final = r"vision_model\.|visual_projection\.|vision_tower\.|visual\."
LAYERS: Final = r"layers\.\d+\.(\w*attn|attention|\w*mlp|feed_forward|\w*layer_?norm|\w*_norm|mixer|block_sparse_moe)"
TEXT: Final = (
    r"(text_encoders?|cond_stage_model|conditioner)\.|clip_[lgh]\.|t5xxl\.|text_model\.|text_projection|logit_scale|"
    r"shared\.|encoder\.(block\.|layers\.\d+\.(self_attn|layer_norm|mlp)|final_layer_norm\.|embed_tokens)|"
    r"embeddings\.(token|position)_|final_layer_norm\.|token_embedding\.|positional_embedding|ln_final\.|"
    r"transformer\.(resblocks|text_model|shared|encoder\.block)\.|spiece_model"
)
ANYWHERE: Final = (  # one tensor is enough
    (re.compile(r"^lora_controlnet$"), CONTROL_LORA),
    (re.compile(r"^lllite_"), LLLITE),
    (re.compile(r"^(pulid_|id_adapter_attn_layers\.)"), PULID),
    (re.compile(r"^redux_(up|down)\."), REDUX),
    (re.compile(r"(^|\.)time_stack\."), VIDEO),
    (
        re.compile(
            r"^(control_model|controlnet|input_hint_block|zero_convs|control_\w+)\.|"
            r"controlnet_(cond_embedding|down_blocks|blocks|x_embedder|mode)"
        ),
        CONTROLNET,
    ),
    (re.compile(r"^(ip_adapter|image_proj(_model)?|adapter_modules)\.|(^|\.)ip_adapter_\w+_proj"), IP_ADAPTER),
    (re.compile(r"^(vision_model\.)?embeddings\.patch_embedding\."), IMAGE_ENCODER),
    (re.compile(r"motion_modules\.|temporal_transformer\."), MOTION),
    (re.compile(r"^(adapter\.)?body\.\d+\.(block1|block2|resnets|in_conv)\."), T2I_ADAPTER),
    (
        re.compile(
            r"^(model\.1\.sub\.\d+\.|body\.\d+\.(rdb1|RDB1|residual_group)\.|RRDB_trunk\.|layers\.\d+\.residual_group\.|"
            r"(conv_up|upconv)\d\.|conv_first\.|feats\.\d+\.|block_\d+\.c\d_r\.|residual_layer\.\d+\.|tail\.\d+\.)"
        ),
        UPSCALER,
    ),
)
WHOLLY: Final = (  # nearly all tensors
    (re.compile(r"^(enc\.blk\.|enc\.output_norm|token_embd\.)"), TEXT_ENCODER),  # T5 in a .gguf file
    (re.compile(r"^(blk\.\d+\.|token_embd\.|output(_norm)?\.|rope_freqs)"), LANGUAGE_MODEL),  # in a .gguf file
    (re.compile(r"^(v|mm)\."), IMAGE_ENCODER),  # in a .gguf file
    (re.compile(r"^(vit\.|classifier\.|swinv?2?\.|convnext\.)"), CLASSIFIER),
    (re.compile(rf"^({TEXT})"), TEXT_ENCODER),
    (re.compile(rf"^({VISION}|{TEXT})"), IMAGE_ENCODER),
    (
        re.compile(
            rf"^((model\.)?(language_model|visual|vision_\w+|norm|embed_tokens)\.|model\.layers\.\d+\.|{LAYERS}|"
            r"(lm_head|score|multi_modal_projector)\.|tekken_model)"
        ),
        LANGUAGE_MODEL,
    ),
    (re.compile(r"^(taesd_(en|de)coder\.|(en|de)coder\.(layers\.)?\d+\.|\d+\.(weight|bias|conv|skip)\b)"), TINY_VAE),
    (re.compile(r"^body\.\d+\.(weight|bias)$"), UPSCALER),
    (re.compile(r"^(encoder|decoder|(post_)?quant_conv|conv[12]|bn|loss|model_ema)\."), VAE),
)


def _has(names: Sequence[str], pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(name) for name in names)


def _is_embedding(tensors: Sequence[Tensor]) -> bool:
    """Return whether a file has the vectors of a word for one text encoder or two, and nothing else of size."""
    vectors = [tensor for tensor in tensors if tensor.weights > 1]
    known = [OF_EMBEDDINGS.fullmatch(each.name) is not None or _is_of_width(each) for each in vectors]
    return 0 < len(vectors) <= MOST_OF_AN_EMBEDDING and all(known)


def _is_of_width(tensor: Tensor) -> bool:
    """Return whether a matrix without a dot in its name could be a word's vectors."""
    return (
        "." not in tensor.name and len(tensor.shape) == 2 and tensor.shape[1] >= 512 and tensor.shape[0] <= MOST_VECTORS
    )
