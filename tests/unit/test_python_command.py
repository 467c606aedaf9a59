"""Child processes in Python run Darkroom's modules, and nothing that the current folder has under their names."""

import re
import subprocess
import sys
from pathlib import Path

from pipelines.protocol.python_command import python_command
from tests.support.harness import REPOSITORY

NOT_BY_IT = {
    "pipelines/protocol/python_command.py",
    "server/cli/cluster/ray_node.py",  # starts Ray's own command
    "pipelines/protocol/machine.py",  # starts nothing: a message names the pip of this installation
    "server/cli/serve.py",  # starts nothing: it names the command beside
    "server/flows/operators/doctor.py",  # asks the installed torch, with -P
}


def test_a_module_runs_with_its_arguments_where_others_of_its_name_lie(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    for name in ("pipelines/__init__.py", "server.py", "PIL.py", "json.py", "runpy.py"):
        (tmp_path / name).write_text("print('foreign')")
    command = python_command("pipelines.images.file_comparison", tmp_path / "none.png")
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("", f"{tmp_path / 'none.png'} is no image that can be read.\n")


def test_no_other_code_starts_a_python() -> None:
    files = [file for folder in ("server", "pipelines") for file in (REPOSITORY / folder).rglob("*.py")]
    named = {str(file.relative_to(REPOSITORY)) for file in files if re.search(r"sys\.executable", file.read_text())}
    assert named <= NOT_BY_IT


def test_plain_workers_start_without_torch() -> None:
    code = "import sys, benchmarks.plain_worker; print({'torch', 'diffusers', 'transformers'} & sys.modules.keys())"
    ended = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"
