"""What docs/ARCHITECTURE.md says can be left out: its folder is deleted, and the server starts and draws without it."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.harness import PLAIN, REPOSITORY, Server
from tests.support.tiny_server import write_tiny_files


@dataclass(frozen=True)
class Extra:
    """What is deleted, and the lines of another file that name it."""

    paths: tuple[str, ...]
    file: str = "server/extras.py"
    lines: str = r"(?!)"


EXTRAS = {
    "dialects": Extra(("server/dialects",), lines=r"^.*server\.dialects.*\n|^    (?:ANTHROPIC|GEMINI),\n"),
    "one dialect": Extra(("server/dialects/gemini",), lines=r"^.*server\.dialects\.gemini.*\n|^    GEMINI,\n"),
    "image upstreams": Extra(("server/backends/image_upstream",)),
    "engines on a Ray cluster": Extra(
        ("server/backends/cluster", "server/cli/cluster.py"),
        "server/cli/app.py",
        r"(?<=clients, )cluster, |^app\.add_typer\(cluster\..*\n",
    ),
}
ALL = "all of them"


def leave_out(code: Path, extra: Extra) -> None:
    for path in extra.paths:
        (shutil.rmtree if (code / path).is_dir() else Path.unlink)(code / path)
    file = code / extra.file
    file.write_text(re.sub(extra.lines, "", file.read_text(), flags=re.MULTILINE))


@pytest.mark.daily(ALL)
@pytest.mark.parametrize("left_out", [ALL, *EXTRAS])
def test_a_server_draws_without_what_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    code = tmp_path / "code"
    for folder in ("server", "pipelines", "benchmarks"):
        shutil.copytree(REPOSITORY / folder, code / folder, ignore=shutil.ignore_patterns("__pycache__", "site"))
    for name, extra in EXTRAS.items():
        if left_out == name or (left_out == ALL and name != "one dialect"):
            leave_out(code, extra)
    monkeypatch.setenv("PYTHONPATH", str(code))
    weights, configs = write_tiny_files(tmp_path / "files", chat=False)
    server = Server(tmp_path / "home", weights, configs, {"device": "cpu"}, program=PLAIN, code=code)
    server.start()
    try:
        image = server.openai().images.generate(model="alpha-image-2-count", prompt="a red boat", size="256x256")
        assert image.data
        assert image.data[0].b64_json
        with server.http() as client:
            status = client.post("/v1/messages", json={}).status_code
            assert (status == 404) == (left_out in {ALL, "dialects"})
    finally:
        server.stop()
