"""The files in deploy/ parse, and agree with the server's settings and with each other."""

import configparser
import getpass
import importlib.metadata
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crossplane
import kubernetes_validate
import pytest
import yaml

from server.backends.cluster.engines_file import read_engines
from server.backends.object_storage import SCHEMES
from server.data_folders import REPOSITORY
from server.settings import Settings

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
    (environment,) = (line for line in lines if line.startswith("ENV "))
    values = dict(word.split("=", 1) for word in environment.split()[1:])
    assert values.keys() <= setting_names()
    assert values["DARKROOM_DEVICE"] == "cuda"
    assert f"VOLUME {values['DARKROOM_HOME']}" in lines
    assert f"EXPOSE {defaults.port}" in lines
    (health,) = (line for line in lines if line.startswith("HEALTHCHECK "))
    assert f"http://127.0.0.1:{defaults.port}/readyz" in health
    assert lines[-1] == 'CMD ["darkroom", "serve"]'
    (extras,) = (line.partition("=")[2].split(",") for line in lines if line.startswith("ARG EXTRAS="))
    assert (
        set(extras)
        <= tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    )


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
    servers |= set(re.findall(r"image: (postgres:\S+)", (DEPLOY / "kubernetes/postgres.yaml").read_text()))
    assert {int(re.split(r"[:.]", server)[1]) for server in servers} == {int(client)}


def manifests(*names: str) -> list[dict[str, Any]]:
    files = [DEPLOY / "kubernetes" / f"{name}.yaml" for name in names]
    return [manifest for file in files for manifest in yaml.safe_load_all(file.read_text())]


ONE, SEVERAL = ("darkroom", "postgres"), ("cluster/darkroom", "postgres")
INSTALLATIONS = pytest.mark.parametrize("files", [ONE, SEVERAL], ids=["one", "several"])


def test_every_manifest_is_of_an_installation() -> None:
    found = {str(file.relative_to(DEPLOY / "kubernetes")) for file in (DEPLOY / "kubernetes").rglob("*.yaml")}
    assert found == {f"{name}.yaml" for name in (*ONE, *SEVERAL, "kuberay")}


@pytest.mark.parametrize(
    "manifest",
    manifests(*ONE, SEVERAL[0]),
    ids=lambda manifest: f"{manifest['kind']}-{manifest['metadata']['name']}",
)
def test_kubernetes_knows_every_field(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.33", strict=True)


@INSTALLATIONS
def test_pods_have_one_gpu_time_to_drain_and_no_privileges(defaults: Settings, files: tuple[str, ...]) -> None:
    sets = {each["metadata"]["name"]: each["spec"] for each in manifests(*files) if each["kind"] == "StatefulSet"}
    pod = sets["darkroom"]["template"]["spec"]
    (server,) = pod["containers"]
    assert sets["darkroom"]["replicas"] == (1 if files == ONE else 2)
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["terminationGracePeriodSeconds"] >= defaults.drain_s + 30
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["enableServiceLinks"] is False  # they would set DARKROOM_PORT to an address
    ours = {variable["name"] for variable in server["env"] if variable["name"].startswith("DARKROOM_")}
    assert ours <= setting_names()
    mounted = {mount["name"] for mount in server["volumeMounts"]}
    claimed = {claim["metadata"]["name"] for claim in sets["darkroom"]["volumeClaimTemplates"]}
    assert mounted == claimed | {volume["name"] for volume in pod["volumes"]}


def test_pods_of_a_cluster_have_all_that_it_needs_and_reach_each_other() -> None:
    found = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in manifests(*SEVERAL)}
    pods = found["StatefulSet", "darkroom"]
    (server,) = pods["template"]["spec"]["containers"]
    assert pods["template"]["spec"]["enableServiceLinks"] is False
    values = {variable["name"]: variable.get("value") for variable in server["env"]}
    assert {"DARKROOM_DATABASE", "DARKROOM_STORAGE", "DARKROOM_CLUSTER_SECRET"} <= values.keys()
    assert values["DARKROOM_STORAGE"].partition("://")[0] in SCHEMES
    url = f"http://$(POD_NAME).{pods['serviceName']}.$(POD_NAMESPACE).svc.cluster.local:9090"
    assert values["DARKROOM_GATEWAY_URL"] == url
    service = found["Service", pods["serviceName"]]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    policy = found["NetworkPolicy", "darkroom"]
    for rules, side in ((policy["ingress"], "from"), (policy["egress"], "to")):
        (rule,) = [rule for rule in rules if {"port": 9090} in rule["ports"]]
        assert rule[side] == [{"podSelector": {"matchLabels": service["selector"]}}]


def test_kuberay_has_pods_for_engines_and_servers_that_use_them(defaults: Settings, tmp_path: Path) -> None:
    (items,) = manifests("kuberay")
    claim, engines, cluster, front, inner, servers = items["items"]
    for manifest in (claim, engines, front, inner, servers):
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    ray = cluster["spec"]
    assert ray["rayVersion"] == importlib.metadata.version("ray")
    (gpus,) = ray["workerGroupSpecs"]
    groups = [group["template"]["spec"] for group in (ray["headGroupSpec"], gpus, servers["spec"])]
    for pod in groups:
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": pod}
        kubernetes_validate.validate(whole, "1.33", strict=True)
        assert pod["terminationGracePeriodSeconds"] >= defaults.drain_s + 30
        (container,) = pod["containers"]
        values = {each["name"]: each.get("value") for each in container["env"]}
        assert {name for name in values if not name.startswith(("RAY_", "POD_"))} <= setting_names()
        assert (values["RAY_AUTH_MODE"], "RAY_AUTH_TOKEN" in values) == ("token", True)
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert groups[1]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert values["RAY_ADDRESS"] == f"{cluster['metadata']['name']}-head-svc:6379"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert values["DARKROOM_CLUSTER"] == f"{mounts[engines['metadata']['name']]}/cluster.toml"
    (tmp_path / "cluster.toml").write_text(engines["data"]["cluster.toml"])
    assert read_engines(tmp_path / "cluster.toml", ())[0].count == "per-gpu"
    labels = servers["spec"]["template"]["metadata"]["labels"]
    assert front["spec"]["selector"] == inner["spec"]["selector"] == labels
    assert servers["spec"]["serviceName"] == inner["metadata"]["name"]


@INSTALLATIONS
def test_every_selector_of_kubernetes_finds_pods(files: tuple[str, ...]) -> None:
    pods = [
        each["spec"]["template"]["metadata"]["labels"] for each in manifests(*files) if each["kind"] == "StatefulSet"
    ]
    for each in manifests(*files):
        if each["kind"] == "Service":
            assert each["spec"]["selector"] in pods


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


def test_the_versions_of_images_are_the_projects(compose: dict[str, Any]) -> None:
    pyproject = (REPOSITORY / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.*)"', pyproject, re.M)
    assert compose["services"]["darkroom"]["image"] == f"darkroom:{version}"
    for name in ("darkroom", "cluster/darkroom", "kuberay"):
        assert f"image: darkroom:{version}" in (DEPLOY / "kubernetes" / f"{name}.yaml").read_text()
    assert f"docker build -f Dockerfile.cuda -t darkroom:{version} ." in DOCKERFILE
