"""The `darkroom` command, and all that the wheel has at the top level: there, `server/` and `pipelines/` lie in this
folder; in a checkout, beside it. No other package can overwrite them, or be imported in their place."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE if (HERE / "server").is_dir() else HERE.parent


def main() -> None:
    """Run the command, with the folder of `server` and `pipelines` first on the path."""
    sys.path.insert(0, str(ROOT))
    from server.cli.app import main

    main()


def prepare_actor() -> None:
    """Import what an engine's actor needs. Ray calls it when it starts a process for one, which knows of the wheel's
    packages this one alone; later Ray puts the folder in which the server was started first on the path there."""
    sys.path.insert(0, str(ROOT))
    import server.backends.cluster.engine_actor  # noqa: F401  # imported for later
