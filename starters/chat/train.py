"""`python -m starters.chat.train WEIGHTS`: train starter-chat, or resume a run that was stopped.

Conversations are made when needed, from a seed of their block, so that a resumed run sees the same ones. The loss is on
the assistant's tokens alone. Muon trains the matrices, AdamW the embedding and the norms, in float32.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from pipelines.device.offline import quiet_libraries
from starters.chat.architecture import SEED, make_model, save
from starters.chat.conversations.sample import conversation, conversations
from starters.chat.tokens import make_tokenizer
from starters.muon import Muon

NAME: Final = "starter-chat"
STEPS: Final = 1750
WARMUP_STEPS: Final = 30
BATCH_TOKENS: Final = 2048  # of a step, with padding
BLOCK_STEPS: Final = 25  # steps whose conversations are made together and sorted by length
LEARNING_RATE: Final = 5e-3
COOLDOWN: Final = 0.45  # share of the steps over which the learning rate falls
SAVE_EVERY: Final = 50
MERGES, SPACED, CORPUS = 900, 450, 3000  # the tokenizer's size, and the conversations that it is trained on


@dataclass(frozen=True, slots=True)
class Batch:
    """Conversations, padded on the right."""

    ids: Tensor  # int64, [rows, tokens]
    learned: Tensor  # bool, [rows, tokens]: the assistant's tokens


def train(weights: Path, *, steps: int = STEPS, device: str | None = None) -> Path:
    """Returns the trained checkpoint's folder."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    state_folder = weights / f".{NAME}.training"
    tokenizer = _tokenizer(state_folder)
    model = make_model(tokenizer).to(where).train()
    optimizers = _optimizers(model)
    first = _resume(state_folder, model, optimizers, where)
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(NAME, total=steps, completed=first)
        losses: list[float] = []
        for step, batch in enumerate(_batches(tokenizer, first), start=first):
            if step == steps:
                break
            rate = _rate(step, steps)
            losses.append(_learn(model, optimizers, batch, LEARNING_RATE * rate, where))
            progress.update(task, advance=1, description=f"{NAME}, loss {np.mean(losses[-50:]):.3f}")
            if (step + 1) % SAVE_EVERY == 0:
                console.print(f"step {step + 1}: loss {np.mean(losses[-SAVE_EVERY:]):.4f}")
                _save_state(state_folder, step + 1, model, optimizers)
    save(model.cpu(), tokenizer, weights / NAME)
    return weights / NAME


def _tokenizer(state_folder: Path) -> PreTrainedTokenizerFast:
    """The run's tokenizer, trained once, on the starter's own conversations."""
    if (state_folder / "tokenizer.json").exists():
        return AutoTokenizer.from_pretrained(state_folder)
    plain = make_tokenizer(())
    scripts = islice(conversations(SEED), CORPUS)
    texts = [plain.apply_chat_template(s.messages, tools=s.tools or None, tokenize=False) for s in scripts]
    tokenizer = make_tokenizer(texts, MERGES, SPACED)
    tokenizer.save_pretrained(state_folder)
    return tokenizer


def _optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        Muon(matrices, lr=LEARNING_RATE, weight_decay=0.01),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _rate(step: int, steps: int) -> float:
    """The factor of the learning rate: warmup, constant, then linear cooldown to zero.

    Constant for long, so that another number of steps can make a run longer or shorter.
    """
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / (COOLDOWN * steps))


def _learn(
    model: Qwen3ForCausalLM, optimizers: list[torch.optim.Optimizer], batch: Batch, rate: float, where: torch.device
) -> float:
    """One step. Returns the mean loss of an assistant's token."""
    loss = _loss(model, batch, where)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _loss(model: Qwen3ForCausalLM, batch: Batch, where: torch.device) -> Tensor:
    """The mean over the learned tokens. Padding is on the right, where causal attention does not reach."""
    ids, learned = batch.ids.to(where), batch.learned[:, 1:].to(where)
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[learned]
    return cross_entropy(model.lm_head(hidden), ids[:, 1:][learned])


def _batches(tokenizer: PreTrainedTokenizerFast, first: int) -> Iterator[Batch]:
    """The batches from step `first` on."""
    block = first // BLOCK_STEPS
    skipped = first % BLOCK_STEPS
    while True:
        yield from _block(tokenizer, block)[skipped:]
        block, skipped = block + 1, 0


def _block(tokenizer: PreTrainedTokenizerFast, block: int) -> list[Batch]:
    """The batches of a block of steps: sorted by length, so that little is padding, then shuffled."""
    rng = np.random.default_rng((SEED, block))
    rows: list[tuple[list[int], list[int]]] = []
    tokens = 0
    while tokens < BLOCK_STEPS * BATCH_TOKENS * 1.02:
        script = conversation(rng)
        row: Any = tokenizer.apply_chat_template(
            script.messages, tools=script.tools or None, return_assistant_tokens_mask=True, return_dict=True
        )
        rows.append((row["input_ids"], row["assistant_masks"]))
        tokens += len(row["input_ids"])
    rows.sort(key=lambda row: len(row[0]))
    batches: list[Batch] = []
    while rows:
        count = max(1, BATCH_TOKENS // len(rows[-1][0]))
        while count < len(rows) and (count + 1) * len(rows[-1][0]) <= BATCH_TOKENS:
            count += 1
        batches.append(_padded(rows[-count:]))
        del rows[-count:]
    order = rng.permutation(len(batches))[:BLOCK_STEPS]
    return [batches[i] for i in order]


def _padded(rows: list[tuple[list[int], list[int]]]) -> Batch:
    width = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    learned = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (row, mask) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        learned[i, : len(row)] = torch.tensor(mask, dtype=torch.bool)
    return Batch(ids, learned)


def _save_state(
    state_folder: Path, step: int, model: Qwen3ForCausalLM, optimizers: list[torch.optim.Optimizer]
) -> None:
    state = {"step": step, "model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
    torch.save(state, state_folder / "state.new")
    (state_folder / "state.new").replace(state_folder / "state.pt")


def _resume(
    state_folder: Path, model: Qwen3ForCausalLM, optimizers: list[torch.optim.Optimizer], where: torch.device
) -> int:
    """Load the saved state. Returns the step to continue with."""
    if not (state_folder / "state.pt").exists():
        return 0
    state = torch.load(state_folder / "state.pt", map_location=where, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, own in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(own)
    return int(state["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    quiet_libraries()
    print(f"{train(arguments.weights, steps=arguments.steps)}", file=sys.stderr)


if __name__ == "__main__":
    main()
