"""The files in deploy/ parse, and agree with the server's settings and with each other."""

import configparser
import getpass
import http.server
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crossplane
import pytest
import yaml

from server.data_folders import REPOSITORY
from server.settings import Settings
from tests.unit.test_kubernetes import LARGEST_ON_HOST_GIB, OTHERS_ON_HOST_GIB

DEPLOY = REPOSITORY / "deploy"
DOCKERFILE = (REPOSITORY / "Dockerfile.cuda").read_text()


@pytest.fixture(scope="module")
def defaults() -> Settings:
    return Settings.model_construct()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def setting_names() -> set[str]:
    return {f"DARKROOM_{name.upper()}" for name in Settings.model_fields}


def directives(block: list[dict[str, Any]], name: str) -> list[list[str]]:
    """The arguments of each directive of that name, at any depth."""
    found = [each["args"] for each in block if each["directive"] == name]
    for each in block:
        found += directives(each.get("block", []), name)
    return found


def instructions() -> list[str]:
    """Of the Dockerfile, each on one line."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    return [" ".join(line.split()) for line in "\n".join(lines).replace("\\\n", "").splitlines() if line.strip()]


def test_the_unit_waits_for_the_drain_and_restarts(defaults: Settings) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "darkroom.service")
    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) >= defaults.drain_s + 30
    assert (service["KillSignal"], service["Restart"], service["UMask"]) == ("SIGTERM", "on-failure", "0077")
    assert service["ExecStart"].endswith("/darkroom serve")
    assert service["User"] == "darkroom"
    assert service["OOMPolicy"] == "continue"  # else the kernel's kill of a worker ends the server
    # NoNewPrivileges keeps CUDA from loading the module itself
    assert service["ExecStartPre"] == "-+/usr/bin/nvidia-modprobe -u -c 0"
    assert {"nvidia-persistenced.service", "nvidia-fabricmanager.service"} <= {*unit["Unit"]["After"].split()}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "darkroom.service"
    text = (DEPLOY / "darkroom.service").read_text()
    unit.write_text(re.sub(r"ExecStart=.*", "ExecStart=/bin/true", text))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_nginx_parses_and_does_not_buffer_or_time_out_first(tmp_path: Path, defaults: Settings) -> None:
    main = tmp_path / "nginx.conf"
    main.write_text(f"events {{}}\nhttp {{ include {DEPLOY / 'nginx.conf'}; }}\n")
    parsed = crossplane.parse(str(main), strict=True, combine=True)
    assert parsed["errors"] == []
    block = parsed["config"][0]["parsed"]
    assert directives(block, "proxy_buffering") == [["off"], ["off"]]
    waits = [float(arguments[0].removesuffix("s")) for arguments in directives(block, "proxy_read_timeout")]
    assert min(waits) > defaults.job_time_limit_s
    assert directives(block, "client_max_body_size") == [["860m"]]
    assert ["deny", "all"] in [["deny", *arguments] for arguments in directives(block, "deny")]
    assert directives(block, "proxy_next_upstream") == [["off"]]


def test_caddy_has_the_same_limits(defaults: Settings) -> None:
    text = "\n".join(line for line in (DEPLOY / "Caddyfile").read_text().splitlines() if not line.startswith("#"))
    assert text.count("{") == text.count("}")
    assert "max_size 860MiB" in text
    assert "flush_interval -1" in text
    (wait,) = re.findall(r"response_header_timeout (\d+)s", text)
    assert float(wait) > defaults.job_time_limit_s


def test_compose_is_open_on_this_machine_alone_and_comes_back(compose: dict[str, Any], defaults: Settings) -> None:
    for name, service in compose["services"].items():
        assert service["restart"] == "unless-stopped", name
        assert service["logging"] == {"driver": "local"}, name  # the default keeps all lines
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert re.search(r":v?\d+\.\d+", service["image"]), f"{name} has no pinned version"
    darkroom = compose["services"]["darkroom"]
    assert float(darkroom["stop_grace_period"].removesuffix("s")) >= defaults.drain_s + 30
    assert darkroom["environment"].keys() <= setting_names()
    (gpu,) = darkroom["deploy"]["resources"]["reservations"]["devices"]
    assert gpu["capabilities"] == ["gpu"]


def test_compose_is_what_its_specification_allows() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run(
        [*command, str(DEPLOY / "compose.yaml")], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_compose_gets_the_variables_that_its_comment_writes_and_needs_no_proxy(compose: dict[str, Any]) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    (comment,) = re.findall(r'echo "(\w+)=\S.*" > deploy/\.env$', text, re.M)
    assert set(re.findall(r"\$\{(\w+)", text)) == {comment}
    assert "/deploy/.env" in (REPOSITORY / ".gitignore").read_text().splitlines()
    assert compose["services"]["grafana"]["environment"]["NO_PROXY"] == "prometheus"  # its data source
    assert "127.0.0.1" in compose["services"]["postgres"]["healthcheck"]["test"]  # while it is made it has no TCP


def test_what_compose_mounts_is_there(compose: dict[str, Any]) -> None:
    mounts = [volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]]
    named = compose["volumes"].keys()
    for source in mounts:
        if source.startswith("./"):
            assert (DEPLOY / source).is_file(), source
        else:
            assert source.startswith("/srv/") or source in named, source


def test_prometheus_scrapes_the_server_and_reads_the_alerts(compose: dict[str, Any]) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert job["job_name"] == "darkroom"
    assert host in compose["services"]
    assert int(port) == Settings.model_fields["port"].default
    assert all((DEPLOY / file).is_file() for file in config["rule_files"])


def test_the_image_installs_dependencies_before_the_code_and_is_pinned() -> None:
    lines = DOCKERFILE.splitlines()
    install = next(number for number, line in enumerate(lines) if "--constraint constraints.txt ${TORCH_INDEX" in line)
    assert install < lines.index("COPY server server")
    assert re.search(r"^ARG BASE=python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", DOCKERFILE, re.M)
    run = DOCKERFILE[DOCKERFILE.index("docker run") : DOCKERFILE.index("docker exec")]
    assert "--restart unless-stopped" in run
    assert "--publish 127.0.0.1:8080:8080" in run


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    words = [line.split()[1:-1] for line in instructions() if line.startswith("COPY ")]
    copied = {word for line in words for word in line if not word.startswith("--")}
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == allowed
    assert [path for path in copied if not (REPOSITORY / path).exists()] == []


@pytest.mark.slow
def test_what_the_image_copies_is_all_that_the_command_reads(tmp_path: Path) -> None:
    image = tmp_path / "image"
    for line in instructions():
        if line.startswith("COPY "):
            for word in [word for word in line.split()[1:-1] if not word.startswith("--")]:
                source, target = REPOSITORY / word, image / word
                target.parent.mkdir(parents=True, exist_ok=True)
                (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DARKROOM_")}
    environment |= {"DARKROOM_HOME": str(tmp_path / "home"), "DARKROOM_DEVICE": "cpu"}
    migrate = "from server.accounts.db import Database; from server.settings import Settings; "
    migrate += "Database(Settings().database_url).migrate()"
    darkroom = ["-m", "darkroom"]
    for arguments in (
        ["-c", migrate],  # as the start of a server does
        [*darkroom, "keys", "create", "first"],
        [*darkroom, "models"],
        [*darkroom, "checkpoints", "inspect", "starter-alpha"],
    ):
        ran = [sys.executable, *arguments]
        done = subprocess.run(ran, cwd=image, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "home" / "darkroom.db").exists()


def test_the_image_runs_on_a_gpu_as_a_user_and_tells_its_health(defaults: Settings) -> None:
    lines = instructions()
    users = [number for number, line in enumerate(lines) if line.startswith("USER ")]
    assert [lines[number] for number in users] == ["USER 1000"]
    assert any("useradd --uid 1000 --create-home darkroom" in line for line in lines[: users[0]])
    environment = [word for line in lines if line.startswith("ENV ") for word in line.split()[1:]]
    values = dict(word.split("=", 1) for word in environment)
    assert {name for name in values if name.startswith("DARKROOM_")} <= setting_names()
    assert values["DARKROOM_DEVICE"] == "cuda"
    # Where Google's Kubernetes has the driver
    assert "/usr/local/nvidia/lib64" in values["LD_LIBRARY_PATH"].split(":")
    assert values["PATH"] == "$PATH:/usr/local/nvidia/bin"
    assert values["USER"] == "darkroom"  # torch before 2.13 wants a name, which ids of `--user` and OpenShift have not
    # Without them `docker run --runtime=nvidia` starts the container without a GPU
    assert (values["NVIDIA_VISIBLE_DEVICES"], values["NVIDIA_DRIVER_CAPABILITIES"]) == ("all", "compute,utility")
    assert f"VOLUME {values['DARKROOM_HOME']}" in lines
    assert f"EXPOSE {defaults.port}" in lines
    # As process 1 it would leave the children of killed workers behind as zombies
    assert lines[-2:] == ['ENTRYPOINT ["tini", "--"]', 'CMD ["darkroom", "serve"]']
    assert any("apt-get install" in line and " tini " in line for line in lines)
    (extras,) = (line.partition("=")[2].split(",") for line in lines if line.startswith("ARG EXTRAS="))
    assert (
        set(extras)
        <= tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    )


class Ready(http.server.BaseHTTPRequestHandler):
    """A server's /readyz, with the status that its server has."""

    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/readyz" else 404)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("status", [200, 503])
def test_the_image_tells_its_health_whatever_proxy_is_set(status: int) -> None:
    (line,) = (line for line in instructions() if line.startswith("HEALTHCHECK "))
    command = json.loads(line.partition(" CMD ")[2])
    proxies = {f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("HTTP", "HTTPS", "ALL")}
    with http.server.HTTPServer(("127.0.0.1", 0), Ready) as server:
        server.status = status  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {**proxies, **{name.lower(): value for name, value in proxies.items()}}
        environment["DARKROOM_PORT"] = str(server.server_port)
        asked = subprocess.run([sys.executable, *command[1:]], env=environment, timeout=60, check=False)
        server.shutdown()
    assert command[0] == "python"
    assert asked.returncode == (0 if status == 200 else 1)


def test_the_image_has_nothing_that_its_linter_objects_to(tmp_path: Path) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    broken = tmp_path / "Dockerfile"
    broken.write_text("FROM python:3.12\nRUN cd /tmp && pip install torch\n")
    files = [REPOSITORY / "Dockerfile.cuda", broken]
    good, bad = (subprocess.run([linter, file], capture_output=True, text=True, check=False) for file in files)
    assert (good.returncode, good.stdout) == (0, "")
    assert "DL3003" in bad.stdout


def test_the_image_leaves_no_lists_and_caches_behind() -> None:
    for line in instructions():
        if "apt-get install" in line:
            assert "--no-install-recommends" in line
            assert "rm -rf /var/lib/apt/lists/*" in line
        if "pip install" in line:
            assert "--no-cache-dir" in line
            assert "--constraint constraints.txt" in line


def test_the_image_can_back_up_the_postgresql_that_is_shipped(compose: dict[str, Any]) -> None:
    (client,) = re.findall(r"postgresql-client-(\d+)", DOCKERFILE)
    servers = {compose["services"]["postgres"]["image"]}
    servers |= set(
        re.findall(r"image: (postgres:\S+)", (DEPLOY / "kubernetes" / "postgres" / "postgres.yaml").read_text())
    )
    assert {int(re.split(r"[:.]", server)[1]) for server in servers} == {int(client)}


def lint(script: Path) -> str:
    """What shellcheck says to a script."""
    linter = Path(sys.executable).with_name("shellcheck")
    return subprocess.run([linter, script], capture_output=True, text=True, timeout=60, check=False).stdout


def test_shell_scripts_have_nothing_that_their_linter_objects_to(tmp_path: Path) -> None:
    for script in (REPOSITORY / "benchmarks" / "aiperf.sh", REPOSITORY / ".ci" / "run"):
        assert lint(script) == ""
    broken = tmp_path / "broken.sh"
    broken.write_text("#!/bin/sh\nrm $1\n")
    assert "SC2086" in lint(broken)


SETTINGS_FILE = r"""
# a comment
; another
DARKROOM_DATABASE=postgresql+psycopg://u:p$w#x%20@h/n?a=1&b=2
  DARKROOM_WEIGHTS="/srv/my \"weights\" $HOME \\"
DARKROOM_PUBLIC_URLS='https://a b; $(touch /nowhere)'
DARKROOM_MAX_N=a\b
no line of a setting
1BAD=x
DARKROOM_MAX_QUEUE=7"""


def wrapper(folder: Path, user: str) -> list[str]:
    """The command of darkroomctl for a server of this user, whose command shows what it gets."""
    shown, settings, script = folder / "darkroom", folder / "darkroom.env", folder / "darkroomctl"
    shown.write_text('#!/bin/sh\nid -u\nprintf "%s\\n" "$@"\nenv -0 | tr "\\n\\0" "|\\n"\n')
    settings.write_text(SETTINGS_FILE)
    text = (DEPLOY / "darkroomctl").read_text()
    for old, new in (
        ("command=/opt/darkroom/.venv/bin/darkroom", f"command={shown}"),
        ("user=darkroom", f"user={user}"),
        ("settings=/etc/darkroom.env", f"settings={settings}"),
    ):
        assert old in text
        text = text.replace(old, new)
    script.write_text(text)
    for file in (shown, script):
        file.chmod(0o755)
    return [str(script), "keys", "create", "a b"]


def test_the_wrapper_runs_as_the_units_user_with_the_units_settings(shared_tmp: Path) -> None:
    user = "nobody" if os.geteuid() == 0 else getpass.getuser()
    ran = subprocess.run(wrapper(shared_tmp, user), capture_output=True, text=True, timeout=60, cwd="/", check=True)
    uid, *lines = ran.stdout.splitlines()
    assert (int(uid), lines[:3], ran.stderr) == (pwd.getpwnam(user).pw_uid, ["keys", "create", "a b"], "")
    found = dict(line.split("=", 1) for line in lines[3:] if line.startswith("DARKROOM_"))
    unit = dict(re.findall(r"^Environment=(\w+)=(.*)$", (DEPLOY / "darkroom.service").read_text(), re.M))
    assert {name: found.pop(name) for name in unit} == unit
    assert found == {
        "DARKROOM_DATABASE": "postgresql+psycopg://u:p$w#x%20@h/n?a=1&b=2",
        "DARKROOM_WEIGHTS": '/srv/my "weights" $HOME \\',
        "DARKROOM_PUBLIC_URLS": "https://a b; $(touch /nowhere)",
        "DARKROOM_MAX_N": "ab",
        "DARKROOM_MAX_QUEUE": "7",
    }


def test_the_wrapper_has_the_units_paths() -> None:
    text, unit = (DEPLOY / "darkroomctl").read_text(), (DEPLOY / "darkroom.service").read_text()
    assert lint(DEPLOY / "darkroomctl") == ""
    (command,) = re.findall(r"^command=(.*)$", text, re.M)
    assert f"ExecStart={command} serve" in unit
    assert f"EnvironmentFile=-{re.findall(r'^settings=(.*)$', text, re.M)[0]}" in unit
    assert f"User={re.findall(r'^user=(.*)$', text, re.M)[0]}" in unit


def test_make_installs_extras_into_an_environment_that_is_there(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "installed-server").touch()

    def would_run(*words: str) -> str:
        return subprocess.check_output(["make", "--dry-run", "install", *words], cwd=tmp_path, text=True)

    assert "pip" not in would_run()
    assert "--editable '.[postgres,storage]'" in would_run("EXTRAS=postgres,storage")


@pytest.fixture
def shared_tmp() -> Iterator[Path]:
    """A folder that other users may enter: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="darkroom-deploy-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_slurm_ends_the_job_after_its_drain(defaults: Settings) -> None:
    script = DEPLOY / "darkroom.sbatch"
    assert lint(script) == ""
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script.read_text(), re.M))
    assert (options["gpus"], options["nodes"]) == ("1", "1")
    who, _, seconds = options["signal"].partition("@")
    assert who == "B:TERM"
    assert float(seconds) >= defaults.drain_s + 30
    assert set(re.findall(r"export (DARKROOM_\w+)", script.read_text())) <= setting_names()
    assert int(options["mem"].removesuffix("G")) >= LARGEST_ON_HOST_GIB + OTHERS_ON_HOST_GIB


def test_a_slurm_job_becomes_the_server_of_its_checkout(tmp_path: Path) -> None:
    program = tmp_path / "checkout" / ".venv" / "bin" / "darkroom"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$$ $* $DARKROOM_HOME $DARKROOM_PORT $DARKROOM_DEVICE $(umask)"\n')
    program.chmod(0o755)
    job = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SLURM_JOB_ID": "4021234"}
    job["SLURM_SUBMIT_DIR"] = str(tmp_path / "checkout")
    run = subprocess.Popen(["bash", DEPLOY / "darkroom.sbatch"], env=job, stdout=subprocess.PIPE, text=True)
    said, served = run.communicate(timeout=60)[0].splitlines()
    # The script's own process: Slurm's signal reaches the server
    assert served == f"{run.pid} serve {tmp_path}/darkroom-home 21234 cuda 0077"
    assert "8080:127.0.0.1:21234" in said
    assert f"{tmp_path}/darkroom-home/dev-key" in said


def test_the_versions_of_images_are_the_projects(compose: dict[str, Any]) -> None:
    pyproject = (REPOSITORY / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.*)"', pyproject, re.M)
    assert compose["services"]["darkroom"]["image"] == f"darkroom:{version}"
    for name in ("single", "cluster", "kuberay"):
        assert f"image: darkroom:{version}" in (DEPLOY / "kubernetes" / name / "darkroom.yaml").read_text()
