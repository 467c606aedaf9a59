"""What an engine does not need, its process does not import."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
ENGINES = ("pipelines.classify.engine", "pipelines.chat.engine")


def test_engines_without_images_load_no_diffusers() -> None:
    loaded = "print([name for name in sys.modules if name.partition('.')[0] == 'diffusers'])"
    command = f"import sys, {', '.join(ENGINES)}; {loaded}"
    process = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert process.stdout.split("\n")[-2] == "[]"
