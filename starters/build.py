"""`python -m starters.build WEIGHTS [--force]`: write the starters that are missing, untrained.

Each folder is made under a temporary name and renamed, so that an interrupted build leaves nothing that looks whole.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

CARD = "README.md"
NAMES = ("starter-alpha", "starter-beta", "starter-chat")


def build_starters(weights: Path, *, force: bool = False) -> list[Path]:
    """The folders that were written. `force` builds untrained ones again; a trained one has its model card."""
    folders = [weights / name for name in NAMES]
    wanted = [folder for folder in folders if not (folder / CARD).exists() and (force or not folder.exists())]
    if not wanted:
        return []
    print(f"Building untrained starter checkpoints in {weights} ...", file=sys.stderr, flush=True)
    from pipelines.device.offline import quiet_libraries

    quiet_libraries()
    weights.mkdir(parents=True, exist_ok=True)
    for folder in wanted:
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        _save(folder.name, temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"  {folder.name}: {size / 1e6:.1f} MB", file=sys.stderr, flush=True)
    return wanted


def _save(name: str, folder: Path) -> None:
    """Imports take seconds: only when there is something to build."""
    if name == "starter-chat":
        from starters.chat.architecture import make_model, save
        from starters.chat.tokens import make_tokenizer

        tokenizer = make_tokenizer(())
        save(make_model(tokenizer), tokenizer, folder)
        return
    import torch

    from starters import architectures

    make = {"starter-alpha": architectures.alpha, "starter-beta": architectures.beta}[name]
    make().to(dtype=torch.float16).save_pretrained(folder)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--force", action="store_true", help="build again what is untrained")
    arguments = parser.parse_args()
    build_starters(arguments.weights, force=arguments.force)


if __name__ == "__main__":
    main()
