"""What an engine does not need, its process does not import."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("engine", ["pipelines.chat.engine", "pipelines.classify.engine"])
def test_engines_without_images_load_no_diffusers(engine: str) -> None:
    loaded = f"import sys, {engine}; print(any(m == 'diffusers' or m.startswith('diffusers.') for m in sys.modules))"
    process = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert process.stdout.split()[-1] == "False"
