"""`python -m starters.training WEIGHTS [NAME ...] [--minutes M]`: train the image starters, or go on with it.

What is under way is kept in WEIGHTS/.training. When the time is up, the learning rate has fallen to its end, and what
there is becomes the checkpoint; the same command without a limit goes on from there. Where that state is gone,
`--onward` begins with the weights of the checkpoint itself.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from pipelines.device.offline import quiet_libraries

# Of the minutes, where they are limited: for the phases in their order.
SHARES: Final = {
    "starter-alpha": (0.05, 0.4, 0.4, 0.15),
    "starter-beta": (0.05, 0.2, 0.3, 0.25, 0.2),
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("names", nargs="*", choices=(*SHARES, []), help="which of them (all)")
    parser.add_argument("--minutes", type=float, help="for each of them; without it, until every step is made")
    parser.add_argument("--onward", action="store_true", help="from the checkpoint that is there, if no state is")
    arguments = parser.parse_args()
    quiet_libraries()
    from starters.training.export import write_checkpoint
    from starters.training.recipes import Training
    from starters.training.taking_up import take_up

    for name in arguments.names or SHARES:
        training = Training("alpha" if name == "starter-alpha" else "beta", arguments.weights / ".training")
        if arguments.onward:
            try:
                take_up(training, arguments.weights / name)
            except OSError as error:
                sys.exit(f"--onward needs a trained checkpoint: {error}")
        for phase, share in zip(training.recipe.phases, SHARES[name], strict=True):
            minutes = float("inf") if arguments.minutes is None else share * arguments.minutes
            training.go_on((phase,), minutes)
        write_checkpoint(training, arguments.weights / name)
        print(f"{name}: {arguments.weights / name}", file=sys.stderr)


if __name__ == "__main__":
    main()
