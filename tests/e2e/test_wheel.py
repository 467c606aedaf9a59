"""The wheel, installed into an empty environment: it starts in a folder elsewhere, with its starters and without a
checkout, a later start keeps the catalog that was edited meanwhile, other packages are in nobody's way, and no module
of the folder is executed."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.support.harness import CALL_LIMIT_S, REPOSITORY, START_LIMIT_S, free_port
from tests.support.object_store import object_store
from tests.support.postgresql import Cluster
from tests.support.ray_cluster import ray_cluster

MODEL = "beta-2.5-flash-image-count"
IN_THE_FOLDER = ("server.py", "pipelines.py", "darkroom.py", "PIL.py", "torch.py", "numpy.py", "json.py", "token.py")
WANTED = ("--no-deps", "--quiet", "--disable-pip-version-check")
FOREIGN = {  # what another package installs
    "server/__init__.py": "raise ImportError('foreign')\n",
    "pipelines.py": "raise ImportError('foreign')\n",
    "foreign-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: foreign\nVersion: 1\n",
    "foreign-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "foreign-1.dist-info/RECORD": "",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", *WANTED, "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*build, str(REPOSITORY)], check=True, timeout=START_LIMIT_S)
    (wheel,) = folder.glob("darkroom-*.whl")
    return wheel


def install(environment: Path, *wheels: Path) -> Path:
    """Install them one after another, and return the command. The dependencies are this environment's; the checkout,
    which is installed there as editable, is out of reach: only `site` would follow its .pth file."""
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for wheel in wheels:
        into = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", *WANTED]
        subprocess.run([*into, "--no-index", str(wheel)], check=True, timeout=START_LIMIT_S)
    return environment / "bin" / "darkroom"


def write_foreign_modules(folder: Path) -> None:
    """Write modules which say that they were executed."""
    for name in IN_THE_FOLDER:
        (folder / name).write_text(f"print(__name__, file=open({str(folder / 'executed')!r}, 'a'))\n")


@contextlib.contextmanager
def serving(darkroom: Path, folder: Path, page: str) -> Iterator[httpx.Client]:
    """Run `darkroom serve` in a folder with somebody else's modules, and the data in another, until it shows this page;
    then stop it."""
    port, data = free_port(), folder / "user data"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DARKROOM_", "PYTHON"))}
    environment |= {"XDG_DATA_HOME": str(data), "DARKROOM_PORT": str(port), "DARKROOM_DEVICE": "cpu"}
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    write_foreign_modules(elsewhere)
    log = folder / "log"
    with log.open("ab") as output:
        command = [str(darkroom), "serve"]
        process = subprocess.Popen(command, env=environment, cwd=elsewhere, stdout=output, stderr=output)
    try:
        base = f"http://127.0.0.1:{port}"
        end = time.monotonic() + START_LIMIT_S
        while not _shows(f"{base}{page}"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        key = (data / "darkroom" / "dev-key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=base, headers=headers, timeout=CALL_LIMIT_S, trust_env=False) as client:
            yield client
        assert {file.name for file in elsewhere.iterdir()} == set(IN_THE_FOLDER)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_LIMIT_S)


def _shows(url: str) -> bool:
    try:
        return httpx.get(url, timeout=60, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(params=["foreign after", pytest.param("foreign before", marks=pytest.mark.nightly)])
def darkroom(request: pytest.FixtureRequest, wheel: Path, tmp_path: Path) -> Iterator[Path]:
    """The command, installed beside another package with modules of Darkroom's names, which stay as they are."""
    foreign = tmp_path / "foreign-1-py3-none-any.whl"
    with zipfile.ZipFile(foreign, "w") as files:
        for name, text in FOREIGN.items():
            files.writestr(name, text)
    wheels = (foreign, wheel) if request.param == "foreign before" else (wheel, foreign)
    yield install(tmp_path / "environment", *wheels)
    (packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    for name in ("server/__init__.py", "pipelines.py"):
        assert (packages / name).read_text() == FOREIGN[name]


def test_an_installed_wheel_draws_with_its_starters_and_keeps_an_edited_catalog(darkroom: Path, tmp_path: Path) -> None:
    home = tmp_path / "user data" / "darkroom"
    with serving(darkroom, tmp_path, "/readyz") as client:
        body = {"model": MODEL, "prompt": "a red boat at sea", "size": "512x512", "seed": 3, "response_format": "url"}
        answer = client.post("/v1/images/generations", json=body).raise_for_status().json()
        file = client.get(answer["data"][0]["url"]).raise_for_status().content
        image = Image.open(io.BytesIO(file))
        assert image.size == (512, 512)
        low, high = zip(*image.convert("RGB").getextrema(), strict=True)
        assert max(high) - min(low) > 100, "an image, and not one colour"
        client.post("/v1/images/edits", data=body, files={"image": file}).raise_for_status()
        assert "<html" in client.get("/console").text
        assert MODEL in {model["id"] for model in client.get("/v1/models").json()["data"]}
    for catalog in (home / "model_configs").glob("*.toml"):
        catalog.write_text(catalog.read_text().replace(MODEL, f"{MODEL}-mine"))
    with serving(darkroom, tmp_path, "/healthz") as client:
        names = {model["id"] for model in client.get("/v1/models").json()["data"]}
        assert f"{MODEL}-mine" in names
        assert MODEL not in names


@pytest.mark.nightly
def test_a_ray_cluster_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    command = install(tmp_path / "environment", wheel)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_foreign_modules(elsewhere)
    with (
        object_store() as store,
        Cluster.temporary() as database,
        ray_cluster(
            tmp_path, database.new("template0"), store.url, store.environment, command=command, code=elsewhere
        ) as cluster,
        cluster.servers[1].http(cluster.key()) as client,
    ):
        body = {"prompt": "a star", "size": "256x256", "steps": 1, "model": "alpha-image-2-count"}
        client.post("/v1/images/generations", json=body).raise_for_status()
    assert {file.name for file in elsewhere.iterdir()} == set(IN_THE_FOLDER)


def test_the_wheel_has_one_name_at_the_top_level(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = {name.partition("/")[0] for name in files.namelist()}
        assert {name for name in names if not name.endswith(".dist-info")} == {"darkroom"}
        (listed,) = (name for name in files.namelist() if name.endswith("/top_level.txt"))
        assert files.read(listed) == b"darkroom\n"
