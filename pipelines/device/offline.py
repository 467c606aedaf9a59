"""Settings that keep the libraries offline and quiet. Apply them before importing torch, diffusers or transformers."""

import importlib
import os
import sys
import warnings
from typing import Final

IMPORTED_UNASKED: Final = ("xformers", "bitsandbytes")  # by diffusers, wherever they are installed


def quiet_libraries() -> None:
    """Forbid libraries to access the network, and to write progress bars or advice to the log."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "DIFFUSERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")  # mixed bfloat16 and float32
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    leave_out_broken()


def leave_out_broken() -> None:
    """Have diffusers do without packages that can't be imported, such as those that were built for another torch: it
    could not be imported either. What needs one of them says that it is not there."""
    from diffusers.utils import import_utils

    for name in IMPORTED_UNASKED:
        if getattr(import_utils, f"_{name}_available"):
            try:
                importlib.import_module(name)
            except Exception as error:  # whatever it is
                print(
                    f"{name} is installed and can't be imported, so it is left out: {error}",
                    file=sys.stderr,
                    flush=True,
                )
                setattr(import_utils, f"_{name}_available", False)
