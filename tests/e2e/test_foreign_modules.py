"""A server in a folder with somebody else's modules, named as Darkroom's packages, its libraries and Python's: none of
them is executed, and all that has a process of its own works."""

import base64
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.test_images_by_sdk import image
from tests.support.harness import REPOSITORY, Server
from tests.support.tiny_families import make_family
from tests.support.tiny_server import CATALOG, IMAGES

pytestmark = pytest.mark.nightly  # of one process that draws and edits: tests/e2e/test_wheel.py
MODEL = "alpha-image-2-count"
BODY = {"model": MODEL, "prompt": "a boat", "size": "256x256", "quality": "low", "response_format": "b64_json"}
TWO_PROCESSES = f"{IMAGES}\n[runtime]\ngpus = 2\n"
PACKAGES = ("server.py", "pipelines/__init__.py")
FOREIGN = (*PACKAGES, "darkroom.py", "PIL.py", "torch.py", "numpy.py", "json.py", "token.py")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, and below it `installed`, as of another package that comes first. Each module writes its name into
    the file `executed`."""
    folder = tmp_path_factory.mktemp("foreign")
    for name in (*FOREIGN, *(f"installed/{name}" for name in PACKAGES)):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"print(__name__, file=open({str(folder / 'executed')!r}, 'a'))\n")
    return folder


@pytest.fixture(scope="module")
def running(foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server there, with a checkpoint on two processes."""
    own = tmp_path_factory.mktemp("own")
    make_family("flux", own / "weights" / "tiny")
    configs = own / "configs"
    configs.mkdir()
    shutil.copy(REPOSITORY / "model_configs" / "presets.toml", configs)
    (configs / "tiny.toml").write_text(TWO_PROCESSES)
    (configs / "catalog.toml").write_text(CATALOG)
    command = Path(sys.executable).with_name("darkroom")
    server = Server(own / "home", own / "weights", configs, {"device": "cpu"}, command=command, code=foreign)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(foreign / "installed"))
        yield server.start()
    server.kill()


@pytest.fixture
def server(running: Server, foreign: Path) -> Iterator[Server]:
    yield running
    executed = foreign / "executed"
    assert not executed.exists(), executed.read_text()


def test_images_are_drawn_on_two_processes_and_edited(server: Server) -> None:
    with server.http() as client:
        assert client.post("/v1/images/generations", json=BODY).status_code == 200
        edited = client.post("/v1/images/edits", data=BODY, files={"image": image(256, 256)})
        assert edited.status_code == 200, edited.text


def test_an_image_is_drawn_again_and_compared(server: Server, tmp_path: Path) -> None:
    with server.http() as client:
        drawn = client.post("/v1/images/generations", json=BODY).raise_for_status().json()
    file = tmp_path / "drawn.png"
    file.write_bytes(base64.b64decode(drawn["data"][0]["b64_json"]))
    again = server.darkroom("reproduce", str(file))
    assert again.stdout.startswith("The same, bit for bit"), again.stderr


def test_checkpoints_are_compared_on_a_sheet(server: Server, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    made = server.darkroom("checkpoints", "proof", MODEL, "--size", "256x256", "--output", str(sheet))
    assert made.returncode == 0, made.stderr
    assert "proof" in Image.open(sheet).text  # type: ignore[attr-defined]


def test_doctor_asks_the_installed_torch(server: Server) -> None:
    told = server.darkroom("doctor").stdout
    assert "for CUDA" in told, told
