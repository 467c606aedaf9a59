"""The extension's build: once for each version of its sources, torch and Python, into `build/` of this repository."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCES = Path(__file__).parent / "csrc"
REPOSITORY = Path(__file__).parents[2]
CACHE = REPOSITORY / "build" / "simulated_gpu"
NAME = "simulated_gpu_extension"
FLAGS = ("-O1", "-std=c++20", "-shared", "-fPIC", "-w")  # torch's own headers warn


def unavailable() -> str | None:
    """Return why there can be no simulated GPU here; None if there can."""
    pinned = re.search(r"^torch==(\S+)", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    version = torch.__version__.partition("+")[0]
    if pinned is None or version != pinned[1]:
        return f"the simulated GPU is written for the torch of constraints.txt, and {version} is installed"
    if torch._C._has_cuda:
        return "the simulated GPU takes the place of CUDA in a torch for CPUs, and this one has CUDA of its own"
    if _compiler() is None:
        return "the simulated GPU needs a C++ compiler, and neither c++, g++ nor clang++ is here"
    return None


def build() -> Path:
    """Return the built extension. The first call takes half a minute; other processes wait for it."""
    files = sorted(SOURCES.iterdir())
    versions = f"{torch.__version__} {sys.version} {FLAGS}".encode()
    digest = hashlib.sha256(b"".join([versions, *(file.read_bytes() for file in files)])).hexdigest()[:16]
    built = CACHE / digest / f"{NAME}.so"
    if built.exists():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with (built.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _compile(built)
    return built


def _compile(built: Path) -> None:
    under_way = built.with_suffix(".tmp")
    include = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = cpp_extension.library_paths()
    command = [
        str(_compiler()), *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-DTORCH_EXTENSION_NAME={NAME}", *(f"-I{folder}" for folder in include), str(SOURCES / "extension.cpp"),
        "-o", str(under_way), *(f"-L{folder}" for folder in libraries),
        *(f"-Wl,-rpath,{folder}" for folder in libraries), "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"The simulated GPU does not compile:\n{ended.stderr[-4000:]}")
    under_way.replace(built)


def _compiler() -> str | None:
    named = os.environ.get("CXX")
    return named or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
