"""`python -m starters.train [NAME ...]`: train the starters, or resume a run that was stopped.

The state of unfinished runs is in WEIGHTS/.training and WEIGHTS/.starter-chat.training. Ctrl-C stops; the same command
resumes. `--minutes` limits each image starter: the learning rate has fallen to its end by then, and what was learned
becomes the checkpoint. Without that state, `--warm-start` begins an image starter with the weights of its checkpoint.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from pipelines.device.offline import quiet_libraries

CHAT: Final = "starter-chat"
# The share of the minutes that each phase gets, in order.
SHARES: Final = {
    "starter-alpha": (0.05, 0.4, 0.4, 0.15),
    "starter-beta": (0.05, 0.2, 0.3, 0.25, 0.2),
}
NAMES: Final = (*SHARES, CHAT)


def train_image_starter(name: str, weights: Path, minutes: float | None, *, warm: bool) -> Path:
    """The trained checkpoint's folder."""
    from starters.training.export import write_checkpoint
    from starters.training.recipes import Training
    from starters.training.warm_start import warm_start

    training = Training("alpha" if name == "starter-alpha" else "beta", weights / ".training")
    if warm:
        try:
            warm_start(training, weights / name)
        except OSError as error:
            sys.exit(f"--warm-start needs a trained checkpoint: {error}")
    for phase, share in zip(training.recipe.phases, SHARES[name], strict=True):
        training.train((phase,), float("inf") if minutes is None else share * minutes)
    write_checkpoint(training, weights / name)
    return weights / name


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m starters.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all unless given")
    parser.add_argument("--weights", type=Path, default=Path("weights"), help="where the checkpoints are (weights)")
    parser.add_argument("--minutes", type=float, help="for each image starter; starter-chat has no limit")
    parser.add_argument("--warm-start", action="store_true", help="image starters: from the checkpoint, if no state is")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in NAMES]:
        parser.error(f"there is no starter {unknown[0]}; they are {', '.join(NAMES)}")
    quiet_libraries()
    for name in arguments.names or NAMES:
        if name == CHAT:
            from starters.chat.train import train

            folder = train(arguments.weights)
        else:
            folder = train_image_starter(name, arguments.weights, arguments.minutes, warm=arguments.warm_start)
        print(f"{name}: {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
