"""The folders of a server whose settings name none. In a checkout, its container and its bundle they are beside the
code. An installed wheel has them in the user's data folder, and brings the starters (a catalog and demo checkpoints),
which the first start copies there, to be edited."""

import os
import re
import shutil
import sys
from pathlib import Path

from pipelines.protocol.machine import ROOT, STARTERS, is_wheel
from server.errors import StartError

REPOSITORY = ROOT
NAMED_STARTER = re.compile(r'^(\s*checkpoint\s*=\s*)"(starter-[a-z]+)"', re.MULTILINE)


def user_data_folder() -> Path:
    """Return the folder in which this user's programs keep their data (XDG Base Directory Specification; on macOS the
    Library). Raises StartError for a user without a home."""
    given = os.environ.get("XDG_DATA_HOME", "")
    if sys.platform != "darwin" and Path(given).is_absolute():
        return Path(given) / "darkroom"
    try:
        home = Path.home()
    except RuntimeError as error:  # a user id without a name, and no HOME
        raise StartError(f"{error} Set DARKROOM_HOME to a folder for the server's files.") from error
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/share") / "darkroom"


def default_home() -> Path:
    """Return the folder of the database, results, logs and keys."""
    return user_data_folder() if is_wheel() else REPOSITORY / "darkroom-home"


def default_folder(name: str, home: Path) -> Path:
    """Return the folder of the weights or of the catalog; a wheel's are in the home."""
    return (home if is_wheel() else REPOSITORY) / name


def write_starters(home: Path, weights: Path, model_configs: Path) -> bool:
    """Copy the wheel's starters into a home that has no catalog yet, and return whether it did. A catalog elsewhere
    is the operator's own: nothing is copied for it."""
    if not is_wheel() or model_configs.exists() or model_configs != default_folder("model_configs", home):
        return False
    own_weights = default_folder("weights", home)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copytree(STARTERS / "weights", own_weights, dirs_exist_ok=True)
    unfinished = home / f".model_configs-{os.getpid()}"
    shutil.copytree(STARTERS / "model_configs", unfinished)
    if weights != own_weights:  # the catalog's paths begin there
        for file in unfinished.glob("*.toml"):
            file.write_text(NAMED_STARTER.sub(rf"\1'{own_weights}/\2'", file.read_text("utf-8")), "utf-8")
    unfinished.rename(model_configs)  # whole or not at all
    return True
