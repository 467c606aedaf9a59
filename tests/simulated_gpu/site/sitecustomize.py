"""Installs the simulated GPU in every Python process below, as soon as it imports torch
(tests.simulated_gpu.device.environment)."""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _ThenInstall(Loader):
    """Loads torch as its own loader does, and then installs the GPU."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if "tests.simulated_gpu.device" in sys.modules:  # it imports torch, and whoever imports it installs the GPU
            return
        from tests.simulated_gpu.device import install_from_environment

        install_from_environment()


class _FindTorch(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec("torch")
        if spec is not None:
            spec.loader = _ThenInstall(spec.loader)
        return spec


if "SIMULATED_GPUS" in os.environ:
    sys.meta_path.insert(0, _FindTorch())
