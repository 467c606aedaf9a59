"""Textual-inversion embeddings: words of a checkpoint's own for prompts, `<name>` for each file of a folder.

They are read once, when the checkpoint is loaded, and become tokens of its tokenizers. A file has the vectors for one
text encoder, or for each of several.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from pipelines.checkpoints.errors import BrokenFile, CheckpointError
from pipelines.checkpoints.weight_file.file import WeightFile
from pipelines.checkpoints.weight_file.header import NO_PICKLES, WEIGHT_FILES, pickles_in
from pipelines.checkpoints.weight_file.kinds import EMBEDDING
from pipelines.images.loading.adapter_files import is_finite

PAIRS: Final = tuple((f"text_encoder{number}", f"tokenizer{number}") for number in ("", "_2", "_3"))
OF_ENCODER: Final[Mapping[str, int]] = {"clip_l": 0, "clip_g": 1, "t5": -1, "t5xxl": -1}  # by the name in the file


def load_embeddings(pipeline: Any, folder: Path) -> tuple[str, ...]:
    """Load all embeddings of a folder into a pipeline. Returns notes for the operator: the word and how many tokens it
    takes in a prompt. Raises CheckpointError for a class that takes none, and for files that can't be used."""
    if not hasattr(pipeline, "load_textual_inversion"):
        raise CheckpointError(f"runtime.embedding_folder: {type(pipeline).__name__} takes no embeddings")
    unread = (f"runtime.embedding_folder: {file.name}: {NO_PICKLES}" for file in pickles_in(folder))
    return (*(_load(pipeline, file) for file in sorted(folder.glob(WEIGHT_FILES))), *unread)


def _load(pipeline: Any, file: Path) -> str:
    word = f"<{file.stem}>"
    taken: dict[str, int] = {}
    for part, tokenizer, vectors in _by_encoder(pipeline, _read(file), file):
        try:
            pipeline.load_textual_inversion(
                {word: vectors},
                token=word,
                tokenizer=getattr(pipeline, tokenizer),
                text_encoder=getattr(pipeline, part),
            )
        except ValueError as error:  # a word of the tokenizer's own
            raise CheckpointError(f"runtime.embedding_folder: {file}: {error}") from error
        taken[part] = len(vectors)
    tokens = max(taken.values())
    counted = f"{tokens} token{'s' if tokens > 1 else ''}"
    return f"the embedding {word} takes {counted} of a prompt, in {' and '.join(sorted(taken))}"


def _read(file: Path) -> dict[str, torch.Tensor]:
    """Read the vectors of a file, a row for each token. Raises CheckpointError for a file of another kind."""
    try:
        kind = WeightFile(file).kind
        weights = load_file(file)
    except (BrokenFile, SafetensorError, OSError) as error:
        raise CheckpointError(f"runtime.embedding_folder: {error}") from error
    if kind != EMBEDDING:
        raise CheckpointError(f"runtime.embedding_folder: {file}: {kind or 'no embedding'}")
    if not all(map(is_finite, weights.values())):
        raise CheckpointError(f"runtime.embedding_folder: {file}: it has vectors that are not numbers")
    return {name: weight.reshape(-1, weight.shape[-1]) for name, weight in weights.items() if weight.numel() > 1}


def _by_encoder(
    pipeline: Any, weights: Mapping[str, torch.Tensor], file: Path
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield the vectors with the text encoder and the tokenizer that they are for: by their names, or else by their
    width. Raises CheckpointError if a text encoder has another width."""
    pairs = [(part, tokenizer) for part, tokenizer in PAIRS if getattr(pipeline, part, None) is not None]
    widths = [getattr(pipeline, part).get_input_embeddings().weight.shape[1] for part, _ in pairs]
    for name, vectors in weights.items():
        if name.endswith("_out"):  # after the encoder, which no pipeline here reads
            continue
        by_width = (number for number, width in enumerate(widths) if width == vectors.shape[1])
        number = OF_ENCODER.get(name, next(by_width, None))
        if number is None or number >= len(pairs) or widths[number] != vectors.shape[1]:
            listed = " and ".join(map(str, widths))
            raise CheckpointError(
                f"runtime.embedding_folder: {file}: its vectors have {vectors.shape[1]} numbers, and the text encoders "
                f"here {listed}: it was trained for another kind of checkpoint"
            )
        yield (*pairs[number], vectors)
