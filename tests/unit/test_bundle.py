"""A bundle's parts: wheels for another machine, sums that find every change, and the count of attempts to leave."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from release.prove_offline import NotProven, _is_local, isolate
from release.verify import MANIFEST, differences, main, unsuitable, write_sums
from release.wheels import BundleFailed, Target, project_requirements, read_wheels, torch_pins, unmet
from server.data_folders import REPOSITORY

TARGET = Target("3.12", "x86_64", "cuda", "2.31")
UNSHARE = ["unshare", "--map-root-user", "--net"]
IN_NAMESPACE = """
import socket
from release.prove_offline import Attempts, control, isolate, remote_sockets
isolate()
before = Attempts.now()
assert before == Attempts(0, 0), before
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
    assert remote_sockets() == []
assert Attempts.now() == before
control(before)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
    resolver.sendto(b"who is example.com?", ("127.0.0.53", 53))
assert Attempts.now().to_closed_ports == 1
"""
BUILT_FOR = {"python": "3.12", "machine": "x86_64", "glibc": "2.31"}


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join([*lines, "", ""]))


def missing(folder: Path, *needed: str, target: Target = TARGET) -> list[str]:
    return [str(each) for each in unmet([Requirement(line) for line in needed], read_wheels(folder), target)]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "server").mkdir()
    (tmp_path / "server/app.py").write_text("one")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/a.whl").write_bytes(b"two")
    (tmp_path / MANIFEST).write_text(json.dumps({**BUILT_FOR, "version": "1", "commit": "abc", "torch": "cuda"}))
    write_sums(tmp_path)
    return tmp_path


def test_what_wheels_ask_for_on_the_target_is_missing(tmp_path: Path) -> None:
    make_wheel(tmp_path, "torch", "2.13.0", 'triton; platform_system == "Linux"', 'winonly; sys_platform == "win32"')
    make_wheel(tmp_path, "typing_ext", "1.0", 'old; python_version < "3.12"', 'new>=2; python_version >= "3.12"')
    make_wheel(tmp_path, "new", "1.0")
    assert missing(tmp_path, "torch", "typing-ext") == [
        'new>=2; python_version >= "3.12"',
        'triton; platform_system == "Linux"',
    ]


def test_extras_are_followed_and_circles_end(tmp_path: Path) -> None:
    make_wheel(tmp_path, "psycopg", "3.3", 'psycopg-binary; extra == "binary"', 'gone; extra == "other"', "loop")
    make_wheel(tmp_path, "loop", "1.0", "psycopg")
    assert missing(tmp_path, "psycopg[binary]") == ['psycopg-binary; extra == "binary"']
    make_wheel(tmp_path, "psycopg_binary", "3.3")
    assert missing(tmp_path, "psycopg[binary]") == []


def test_pip_is_asked_for_the_target_and_no_newer_c_library() -> None:
    options = TARGET.pip_options
    assert {"--python-version=3.12", "--platform=manylinux_2_31_x86_64", "--platform=manylinux2014_x86_64"} <= set(
        options
    )
    assert "--platform=manylinux_2_32_x86_64" not in options


def test_one_build_of_torch_is_allowed() -> None:
    constraints = REPOSITORY / "constraints.txt"
    cuda, cpu = torch_pins(constraints, "cuda"), torch_pins(constraints, "cpu")
    assert len(cuda) == 2
    assert cpu == [f"{pin}+cpu" for pin in cuda]
    version = cuda[0].partition("===")[2]
    assert Requirement(cuda[0]).specifier.contains(version)
    assert not Requirement(cuda[0]).specifier.contains(f"{version}+cpu")


def test_the_projects_own_requirements_are_known(tmp_path: Path) -> None:
    names = {each.name for each in project_requirements(REPOSITORY / "pyproject.toml", ["postgres"])}
    assert {"torch", "fastapi", "setuptools", "psycopg"} <= names
    assert "pytest" not in names
    with pytest.raises(BundleFailed, match="no extra 'none'"):
        project_requirements(REPOSITORY / "pyproject.toml", ["none"])


def test_an_untouched_bundle_verifies_whatever_use_has_made_in_it(bundle: Path) -> None:
    for name in (".venv", "darkroom-home", "darkroom.egg-info", "server/__pycache__"):
        (bundle / name).mkdir()
        (bundle / name / "file").write_text("made here")
    assert differences(bundle) == []


def test_every_change_is_named(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "server/app.py").write_text("One")
    (bundle / "wheels/a.whl").unlink()
    (bundle / "wheels/b.whl").write_text("")
    assert differences(bundle) == ["changed: server/app.py", "missing: wheels/a.whl", "not in the bundle: wheels/b.whl"]
    assert main(bundle) == 1
    assert "Do not install" in capsys.readouterr().err


def test_a_checkout_is_no_bundle(tmp_path: Path) -> None:
    assert main(tmp_path) == 2


def test_another_machine_is_refused() -> None:
    assert unsuitable(BUILT_FOR, "3.12", "x86_64", "2.36") == []
    assert len(unsuitable(BUILT_FOR, "3.11", "aarch64", "2.28")) == 3
    assert len(unsuitable(BUILT_FOR, "3.12", "x86_64", "")) == 1  # musl


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("0100007F", True),
        ("00000000", True),
        ("010200C0", False),
        ("00000000000000000000000001000000", True),
        ("00000000000000000000000000000000", True),
        ("0000000000000000FFFF00000100007F", True),
        ("0000000000000000FFFF0000010200C0", False),
        ("B80D0120000000000000000001000000", False),
    ],
)
def test_addresses_of_the_kernel_are_read(address: str, local: bool) -> None:
    assert _is_local(address) is local


def test_a_network_is_noticed() -> None:
    if len(Path("/proc/net/dev").read_text().splitlines()) == 3:
        pytest.skip("this machine has the loopback alone")
    with pytest.raises(NotProven, match="no namespace without a network"):
        isolate()


@pytest.mark.skipif(subprocess.run([*UNSHARE, "true"], check=False).returncode != 0, reason="needs user namespaces")
def test_the_kernel_counts_attempts_to_leave_a_namespace() -> None:
    """With the loopback up, the count begins at nothing; an attempt on purpose is counted, and so is a look-up."""
    done = subprocess.run([*UNSHARE, sys.executable, "-c", IN_NAMESPACE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
