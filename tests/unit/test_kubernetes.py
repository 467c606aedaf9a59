"""The installations of deploy/kubernetes/: what a documented command applies has all that its pods need."""

import importlib.metadata
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from server.backends.cluster.engines_file import read_engines
from server.backends.object_storage import SCHEMES
from server.data_folders import REPOSITORY
from server.settings import Settings
from tests.support.dry_runs import KUBERNETES, manifests, named

FOLDER = REPOSITORY / "deploy" / "kubernetes"
Manifest = dict[str, Any]
SINGLE, CLUSTER, KUBERAY = ("postgres", "single"), ("postgres", "cluster"), ("kuberay",)
INSTALLATIONS = pytest.mark.parametrize("folders", [SINGLE, CLUSTER, KUBERAY], ids=lambda folders: folders[-1])
LARGEST_ON_HOST_GIB = 69  # page-locked: FLUX.2 [dev] with its encoders on the host, as `auto` has it on 80 GB cards
NEEDED = {"DARKROOM_DATABASE": "postgres", "DARKROOM_STORAGE": "storage", "DARKROOM_CLUSTER": "cluster"}  # extras
OTHERS_ON_HOST_GIB = 20  # the processes, images of clients, a checkpoint that is read while another one serves


@pytest.fixture(scope="module")
def defaults() -> Settings:
    return Settings.model_construct()


def installation(folders: tuple[str, ...]) -> dict[tuple[str, str], Manifest]:
    """By kind and name."""
    found = [manifest for folder in folders for manifest in manifests(FOLDER / folder)]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pods(folders: tuple[str, ...]) -> Iterator[Manifest]:
    """The specification of each pod that the installation makes."""
    for manifest in installation(folders).values():
        yield from (template["spec"] for template in named(manifest.get("spec"), "template"))


def variables(container: Manifest) -> dict[str, str | None]:
    return {variable["name"]: variable.get("value") for variable in container.get("env", [])}


def gib(quantity: str) -> float:
    number, unit = re.fullmatch(r"(\d+)([GM])i", quantity).groups()  # type: ignore[union-attr]
    return int(number) / {"G": 1, "M": 1024}[unit]


def test_every_manifest_is_of_an_installation_that_a_comment_applies() -> None:
    files = [*FOLDER.rglob("*.y*ml")]
    assert {file.parent for file in files} == {FOLDER / folder for folder in {*SINGLE, *CLUSTER, *KUBERAY}}
    applied = set(re.findall(r"--filename (deploy/kubernetes/\S+/)", "".join(file.read_text() for file in files)))
    assert {REPOSITORY / folder for folder in applied} == {file.parent for file in files}


@INSTALLATIONS
def test_pods_meet_the_restricted_standard_and_have_time_to_drain(defaults: Settings, folders: tuple[str, ...]) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards: namespaces may enforce it."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for pod in pods(folders):
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod}
        kubernetes_validate.validate(whole, KUBERNETES, strict=True)
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
        containers = [*pod.get("initContainers", []), *pod["containers"]]
        assert [each["securityContext"] for each in containers] == [security] * len(containers)
        if pod["containers"][0]["name"] != "postgres":
            assert all(
                each["startupProbe"]["failureThreshold"] * 5 == 3600 for each in containers if "startupProbe" in each
            )
            assert pod["enableServiceLinks"] is False  # they would set DARKROOM_PORT to an address
            assert pod["terminationGracePeriodSeconds"] >= defaults.drain_s + 30


@INSTALLATIONS
def test_pods_know_their_settings_and_mount_their_volumes(folders: tuple[str, ...]) -> None:
    known = {f"DARKROOM_{name.upper()}" for name in Settings.model_fields}
    specs = [manifest.get("spec", {}) for manifest in installation(folders).values()]
    claims = {claim["metadata"]["name"] for spec in specs for claim in spec.get("volumeClaimTemplates", [])}
    for pod in pods(folders):
        (container,) = pod["containers"]
        assert {name for name in variables(container) if name.startswith("DARKROOM_")} <= known
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert {volume["name"] for volume in pod.get("volumes", [])} <= mounted
        assert mounted <= claims | {volume["name"] for volume in pod.get("volumes", [])}


@INSTALLATIONS
def test_a_gpu_has_memory_for_the_largest_checkpoint_and_no_other_pod_sees_one(folders: tuple[str, ...]) -> None:
    with_gpu = 0
    for pod in pods(folders):
        (container,) = pod["containers"]
        limits = container["resources"]["limits"]
        if "nvidia.com/gpu" in limits:
            with_gpu += 1
            assert limits["nvidia.com/gpu"] == "1"
            assert gib(limits["memory"]) >= LARGEST_ON_HOST_GIB + OTHERS_ON_HOST_GIB
            assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
            assert "NVIDIA_VISIBLE_DEVICES" not in variables(container)  # the device plugin says which one
        elif container["name"] != "postgres":
            assert variables(container)["NVIDIA_VISIBLE_DEVICES"] == "void"
            # With the image's `cuda` the chat worker of a server would never be ready
            assert container["name"] != "darkroom" or variables(container)["DARKROOM_DEVICE"] == "cpu"
    assert with_gpu == 1


@INSTALLATIONS
def test_the_image_has_the_packages_that_the_settings_need(folders: tuple[str, ...]) -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    comments = "".join(file.read_text() for folder in folders for file in (FOLDER / folder).glob("*.yaml"))
    built = re.findall(r"--build-arg EXTRAS=(\S+)", comments) or re.findall(
        r"^ARG EXTRAS=(\S+)$", (REPOSITORY / "Dockerfile.cuda").read_text(), re.M
    )
    packages = {package for extra in built[0].split(",") for package in extras[extra]}
    for pod in pods(folders):
        given = variables(pod["containers"][0])
        needed = [extra for setting, extra in NEEDED.items() if setting in given]
        assert {package for extra in needed for package in extras[extra]} <= packages


@INSTALLATIONS
def test_every_selector_finds_pods(folders: tuple[str, ...]) -> None:
    found = installation(folders)
    sets = [manifest["spec"] for (kind, _), manifest in found.items() if kind == "StatefulSet"]
    assert all(("Service", each["serviceName"]) in found for each in sets)
    labels = [each["template"]["metadata"]["labels"] for each in sets]
    services = [manifest["spec"] for (kind, _), manifest in found.items() if kind == "Service"]
    assert all(each["selector"] in labels for each in services)


@pytest.mark.parametrize("folders", [SINGLE, CLUSTER], ids=lambda folders: folders[-1])
def test_a_catalog_is_copied_whole_once_and_stays(folders: tuple[str, ...], tmp_path: Path) -> None:
    pod = next(pod for pod in pods(folders) if "initContainers" in pod)
    (copy,) = pod["initContainers"]
    (tmp_path / "model_configs").mkdir()
    (tmp_path / "model_configs" / "a.toml").write_text("new")
    home = tmp_path / "data"
    (home / "copy").mkdir(parents=True)
    (home / "copy" / "half.toml").touch()  # of a pod that was killed meanwhile
    paths = {"/data": str(home), "/opt/darkroom": str(tmp_path)}
    command = [re.sub("/data|/opt/darkroom", lambda found: paths[found[0]], word) for word in copy["command"]]
    subprocess.run(command, check=True)
    assert [file.name for file in home.rglob("*")] == ["catalog", "a.toml"]
    (home / "catalog" / "a.toml").write_text("edited")
    subprocess.run(command, check=True)
    assert (home / "catalog" / "a.toml").read_text() == "edited"
    assert not (home / "copy").exists()


def test_pods_of_a_cluster_have_all_that_it_needs_and_reach_each_other() -> None:
    found = {key: manifest["spec"] for key, manifest in installation(CLUSTER).items()}
    servers = found["StatefulSet", "darkroom"]
    (server,) = servers["template"]["spec"]["containers"]
    assert servers["replicas"] == 2
    values = variables(server)
    assert {"DARKROOM_DATABASE", "DARKROOM_STORAGE", "DARKROOM_CLUSTER_SECRET"} <= values.keys()
    assert str(values["DARKROOM_STORAGE"]).partition("://")[0] in SCHEMES
    url = f"http://$(POD_NAME).{servers['serviceName']}.$(POD_NAMESPACE).svc.cluster.local:9090"
    assert values["DARKROOM_GATEWAY_URL"] == url
    service = found["Service", servers["serviceName"]]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    policy = found["NetworkPolicy", "darkroom"]
    for rules, side in ((policy["ingress"], "from"), (policy["egress"], "to")):
        (rule,) = [rule for rule in rules if {"port": 9090} in rule["ports"]]
        assert rule[side] == [{"podSelector": {"matchLabels": service["selector"]}}]


def test_kuberay_has_pods_for_engines_and_servers_that_use_them(tmp_path: Path) -> None:
    found = installation(KUBERAY)
    ray, servers = found["RayCluster", "darkroom"]["spec"], found["StatefulSet", "darkroom"]["spec"]
    assert ray["rayVersion"] == importlib.metadata.version("ray")
    (gpus,) = ray["workerGroupSpecs"]
    for group in (ray["headGroupSpec"], gpus):
        (container,) = group["template"]["spec"]["containers"]
        # KubeRay asks Ray's dashboard unless a pod has probes of its own, and the image has no dashboard
        port = {"tcpSocket": {"port": int(group["rayStartParams"]["node-manager-port"])}}
        assert port.items() <= container["readinessProbe"].items()
        assert port.items() <= container["livenessProbe"].items()
    for pod in (ray["headGroupSpec"]["template"]["spec"], gpus["template"]["spec"], servers["template"]["spec"]):
        values = variables(pod["containers"][0])
        assert (values["RAY_AUTH_MODE"], "RAY_AUTH_TOKEN" in values) == ("token", True)
    (server,) = servers["template"]["spec"]["containers"]
    assert values["RAY_ADDRESS"] == "darkroom-head-svc:6379"
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    assert values["DARKROOM_CLUSTER"] == f"{mounts['engines']}/cluster.toml"
    (tmp_path / "cluster.toml").write_text(found["ConfigMap", "engines"]["data"]["cluster.toml"])
    assert read_engines(tmp_path / "cluster.toml", ())[0].count == "per-gpu"
