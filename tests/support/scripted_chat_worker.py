"""The chat worker with models that write what a test says: `python -m tests.support.scripted_chat_worker`, in place of
pipelines.worker.

Everything is the worker's own but for the logits: where a checkpoint's folder has a SCRIPT of tokens, its model finds
each of them likeliest, one after the other. What the model is shown is written beside it, as text.
"""

import json
from pathlib import Path
from typing import Any

import torch

from pipelines import worker
from pipelines.chat.loading import checkpoint
from pipelines.chat.prompts.chat_template import TemplateUse
from pipelines.device.offline import quiet_libraries
from pipelines.protocol.chat import ChatSpec

SCRIPT, SHOWN = "script.json", "shown.txt"
FAR = 1e4

_open = checkpoint.open_checkpoint
_encode = TemplateUse.encode
_folders: dict[int, Path] = {}  # by the id of what renders prompts


class Script:
    """A hook of one model, behind its forward pass."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0  # of the token that was written last

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        if not self._path.is_file():
            return output
        tokens: list[int] = json.loads(self._path.read_text())
        ids = kwargs["input_ids"]
        goes_on = ids.shape[1] == 1 and self._at < len(tokens) - 1 and int(ids[0, -1]) == tokens[self._at]
        self._at = self._at + 1 if goes_on else 0
        output.logits = torch.full_like(output.logits, -FAR)
        output.logits[..., tokens[self._at]] = FAR
        return output


def _open_scripted(spec: ChatSpec, device: torch.device) -> Any:
    processor, tokenizer, model, notes = _open(spec, device)
    model.register_forward_hook(Script(spec.path / SCRIPT), with_kwargs=True)
    _folders[id(processor or tokenizer)] = spec.path
    return processor, tokenizer, model, notes


def _encode_shown(self: TemplateUse, *given: Any, tensors: bool) -> Any:
    encoded = _encode(self, *given, tensors=tensors)
    tokenizer = getattr(self.renderer, "tokenizer", self.renderer)
    tokens = encoded["input_ids"][0] if tensors else encoded["input_ids"]
    (_folders[id(self.renderer)] / SHOWN).write_text(tokenizer.decode(tokens))
    return encoded


def main() -> None:
    """Run the worker."""
    quiet_libraries()
    checkpoint.open_checkpoint = _open_scripted
    TemplateUse.encode = _encode_shown  # type: ignore[method-assign]
    worker.main()


if __name__ == "__main__":
    main()
