"""Dry runs of documented commands: each program reads its words as it would, against the files of this repository.

Nothing is executed. A program that is not in `PROGRAMS` is a problem: say there what can be known of it.
"""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import typer
import yaml
from fastapi import FastAPI
from huggingface_hub.cli.hf import app as hf
from jsonschema import ValidationError
from kubernetes_validate import ValidationError as NotKubernetes
from kubernetes_validate import validate
from ray.scripts.scripts import cli as ray

from server.cli.app import app
from server.data_folders import REPOSITORY
from server.settings import Settings
from tests.support.openapi import check, operations
from tests.support.shell_commands import Command

KUBERNETES = "1.33"
COMPOSE = "deploy/compose.yaml"
OF_OTHERS = ("claude", "exiftool", "find", "gemini", "gzip", "openssl", "open-webui", "sha256sum", "tar")
MADE_BY_COMMANDS = ("darkroom-home", "build", "wheels", "weights")  # folders whose files a checkout lacks
OPTIONS = {  # of docker and kubectl: those that take a value, and those that take none
    "docker build": ("--build-arg --file -f --tag -t", "--no-cache"),
    "docker exec": ("--env", "--interactive --tty"),
    "docker save": ("--output", ""),
    "docker run": (
        "--device --env --env-file --gpus --ipc --log-driver --name --publish --restart --runtime --security-opt "
        "--shm-size --stop-timeout --user --volume",
        "--detach --rm",
    ),
    "docker compose": ("--file", ""),
    "docker compose up": ("", "--build --detach"),
    "docker compose exec": ("", ""),
    "docker compose run": ("", "--rm"),
    "docker compose stop": ("", ""),
    "kubectl": ("--namespace", ""),
    "kubectl create namespace": ("", ""),
    "kubectl create secret generic": ("--from-literal", ""),
    "kubectl apply": ("--filename", ""),
    "kubectl cp": ("", ""),
    "kubectl exec": ("", ""),
}


class Problem(Exception):
    """What would keep a command from doing what its page says."""


@cache
def image() -> str:
    """Return the name of the image that the files of deploy/ run."""
    name: str = yaml.safe_load((REPOSITORY / COMPOSE).read_text())["services"]["darkroom"]["image"]
    return name


@cache
def setting_names() -> set[str]:
    """Return the server's, and the one in which clients are given a key."""
    return {"DARKROOM_API_KEY", *(f"DARKROOM_{name.upper()}" for name in Settings.model_fields)}


@cache
def darkroom() -> Any:
    """Return the command, as click knows it."""
    return typer.main.get_command(app)


@cache
def pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", path))


def options(words: Sequence[str], command: str, *, inner: bool = False) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of each option, and the arguments. `inner`: from the first argument on, all are arguments."""
    valued, plain = (names.split() for names in OPTIONS[command])
    given: dict[str, list[str]] = defaultdict(list)
    arguments: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or (inner and arguments):
            arguments.append(word)
        elif name in valued:
            given[name].append(value if equals else next(rest, ""))
        elif word in plain:
            given[word].append("")
        else:
            raise Problem(f"{command} has no {word}")
    return given, arguments


def manifests(path: Path) -> list[dict[str, Any]]:
    """Return what `kubectl apply --filename` reads of a file or a folder, which it does not descend."""
    found = [path] if path.is_file() else sorted(each for each in path.glob("*") if each.suffix in (".yaml", ".yml"))
    if not found:
        raise Problem(f"{path.relative_to(REPOSITORY)} has no manifests")
    read = [each for file in found for each in yaml.safe_load_all(file.read_text())]
    return [each for one in read for each in (one["items"] if one["kind"] == "List" else [one])]


def named(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """Yield every object that a manifest has at this key, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get(key), dict):
            yield value[key]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from named(each, key)


def parse(group: Any, words: Sequence[str], program: str) -> None:
    """Read words as a program of click does, up to its first question to the machine."""
    command, rest = group, list(words)
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            raise Problem(f"{program} has no command {rest[:1]}")
        command = command.get_command(None, rest.pop(0))
    try:
        command.make_context(program, rest)
    except Exception as error:  # typer's and click's errors have no class in common
        if not re.search(r"'/\S+' does not exist", str(error)):  # a file of the reader's
            raise Problem(f"{program} {' '.join(words)}: {error}") from error


@dataclass
class Made:
    """What commands have made so far."""

    activated: bool = False  # .venv
    files: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    secrets: dict[str, set[str]] = field(default_factory=dict)  # the keys of each
    applied: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class DryRun:
    """Reads the commands of a page in their order."""

    server: FastAPI
    made: Made = field(default_factory=Made)

    def problems(self, commands: Sequence[Command]) -> list[str]:
        found = []
        for command in commands:
            try:
                self.run(command.words, dict(command.settings))
            except Problem as problem:
                found.append(f"line {command.line}: {problem}")
        return found

    def run(self, words: Sequence[str], assigned: dict[str, str]) -> None:
        mentioned = {name for word in words for name in re.findall(r"(DARKROOM_\w+)=", word)}
        if unknown := {name for name in {*assigned, *mentioned} if name.startswith("DARKROOM_")} - setting_names():
            raise Problem(f"there are no settings {sorted(unknown)}")
        if not words:
            return
        for word in words:
            self._check_path(word)
        program = words[0].rpartition("/")[2]
        if program in OF_OTHERS:
            return
        if program not in PROGRAMS:
            raise Problem(f"it is not known what {words[0]} needs")
        PROGRAMS[program](self, words)

    def _check_path(self, word: str) -> None:
        """Raise for a path of this repository that leads nowhere."""
        first, slash, _ = word.partition("/")
        ours = slash and first not in ("", ".", ".venv", *MADE_BY_COMMANDS) and (REPOSITORY / first).is_dir()
        if ours and not (REPOSITORY / word).exists():
            raise Problem(f"there is no {word}")

    def inside(self, words: Sequence[str]) -> None:
        """A command in a container of the image."""
        if not words or words[0] not in ("cat", "darkroom"):
            raise Problem(f"it is not known what {list(words)} needs in the container")
        for path in words:
            if path.startswith("/") and not path.startswith("/home/darkroom/data/"):
                raise Problem(f"{path} is not in the image's home")
        if words[0] == "darkroom":
            parse(darkroom(), words[1:], "darkroom")

    def darkroom(self, words: Sequence[str]) -> None:
        if words[0] == "darkroomctl" and "/usr/local/bin/darkroomctl" not in self.made.files:
            raise Problem("darkroomctl is not installed yet")
        parse(darkroom(), words[1:], "darkroom")

    def ray(self, words: Sequence[str]) -> None:
        if words[0] == "ray" and not self.made.activated:
            raise Problem("ray is in .venv/bin, which no command before has activated")
        parse(ray, words[1:], "ray")

    def hugging_face(self, words: Sequence[str]) -> None:
        parse(hf.commands[words[1]].materialize(), words[2:], "hf")

    def activate(self, words: Sequence[str]) -> None:
        self.made.activated = self.made.activated or words[1:] == (".venv/bin/activate",)

    def make(self, words: Sequence[str]) -> None:
        text = (REPOSITORY / "Makefile").read_text()
        for word in words[1:]:
            name, assigned, value = word.partition("=")
            use = rf"\$\([^)]*\b{name}\b" if assigned else rf"^{name}:"
            if not word.startswith("-") and not re.search(use, text, re.M):
                raise Problem(f"the Makefile has no {name}")
            if name == "EXTRAS":
                self._check_extras(value.split(","))

    def pip(self, words: Sequence[str]) -> None:
        if any(word.startswith(".[") for word in words):
            raise Problem("pip may be the system's, and knows no constraints: say make install EXTRAS=...")

    def _check_extras(self, names: Sequence[str]) -> None:
        table = (REPOSITORY / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
        if unknown := [name for name in names if not re.search(rf"^{name} = \[", table, re.M)]:
            raise Problem(f"there are no extras {unknown}")

    def python(self, words: Sequence[str]) -> None:
        if words[1] == "-c":
            compile(words[2], "page", "exec")

    def curl(self, words: Sequence[str]) -> None:
        (url,) = (word for word in words if word.startswith(("http", "$OPENAI_BASE_URL")))
        path = re.sub(
            r"^(https?://[^/]+|\$OPENAI_BASE_URL(?=/))", lambda found: "/v1" if found[0][0] == "$" else "", url
        )
        body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
        method = "GET" if body is None else "POST"
        document = self.server.openapi()
        for known_method, known, operation in operations(document):
            if known_method == method and pattern(known).fullmatch(path):
                if body is not None:
                    content = operation["requestBody"]["content"]["application/json"]
                    try:
                        check(document, content["schema"], body)
                    except ValidationError as error:
                        raise Problem(f"{path} does not take this body: {error.message}") from error
                return
        raise Problem(f"the server has no {method} {path}")

    def copy(self, words: Sequence[str]) -> None:
        *sources, target = (word for word in words[1:] if not word.startswith("-"))
        self.made.files |= {f"{target}{PurePosixPath(source).name}" for source in sources if target.endswith("/")} | {
            target
        }

    def add_user(self, words: Sequence[str]) -> None:
        self.made.users.add(words[-1])

    def use_user(self, words: Sequence[str]) -> None:
        user = words[-1] if words[0] == "usermod" else words[-2]
        if not user.isdigit() and user not in self.made.users:
            raise Problem(f"there is no user {user} yet")

    def systemctl(self, words: Sequence[str]) -> None:
        if f"/etc/systemd/system/{words[-1]}.service" not in self.made.files:
            raise Problem(f"there is no unit {words[-1]} yet")

    def sbatch(self, words: Sequence[str]) -> None:
        if not (REPOSITORY / words[-1]).read_text().startswith("#!"):
            raise Problem(f"{words[-1]} is no script")

    def nothing(self, words: Sequence[str]) -> None:
        """A program of the system, whose paths are all that can be wrong."""

    def docker(self, words: Sequence[str]) -> None:
        verb, rest = words[1], words[2:]
        if verb == "compose":
            self._compose(rest)
            return
        if verb in ("load", "buildx"):
            return
        given, arguments = options(rest, f"docker {verb}", inner=verb in ("run", "exec"))
        if verb == "build":
            file = (given["--file"] + given["-f"])[0]
            if not (REPOSITORY / file).is_file():
                raise Problem(f"there is no {file}")
            known = re.findall(r"^ARG (\w+)=", (REPOSITORY / file).read_text(), re.M)
            if unknown := [each for each in given["--build-arg"] if each.partition("=")[0] not in known]:
                raise Problem(f"{file} has no {unknown}")
            for each in given["--build-arg"]:
                self._check_extras(each.removeprefix("EXTRAS=").split(","))
            self._check_image((given["--tag"] + given["-t"])[0])
        elif verb == "exec":
            if arguments[0] not in self.made.containers:
                raise Problem(f"no container {arguments[0]} is running")
            self.inside(arguments[1:])
        else:
            self._check_image(arguments[0])
            self.made.containers |= {*given["--name"]}
            if "--rm" not in given and verb == "run" and not given["--restart"]:
                raise Problem("the container does not come back after a boot")

    def _check_image(self, name: str) -> None:
        if name != image():
            raise Problem(f"the image is {image()} in deploy/, not {name}")

    def _compose(self, words: Sequence[str]) -> None:
        given, (verb, *rest) = options(words, "docker compose", inner=True)
        if not given["--file"]:
            raise Problem("docker compose finds no file in the repository's folder: --file deploy/compose.yaml")
        services = yaml.safe_load((REPOSITORY / given["--file"][0]).read_text())["services"]
        _, arguments = options(rest, f"docker compose {verb}", inner=True)
        if unknown := [name for name in arguments[:1] if name not in services]:
            raise Problem(f"{given['--file'][0]} has no {unknown}")
        if verb in ("exec", "run"):
            self.inside(arguments[1:])

    def kubectl(self, words: Sequence[str]) -> None:
        before = tuple(itertools.takewhile(lambda word: word != "--", words[1:]))
        given, (verb, *rest) = options(before, "kubectl", inner=True)
        if unknown := [name for name in given["--namespace"] if name not in self.made.namespaces]:
            raise Problem(f"there is no namespace {unknown} yet")
        if verb == "create":
            verb, rest = (
                ("create namespace", rest[1:]) if rest[0] == "namespace" else ("create secret generic", rest[2:])
            )
        of_verb, arguments = options(rest, f"kubectl {verb}")
        if verb == "create namespace":
            self.made.namespaces.add(arguments[0])
        elif verb == "create secret generic":
            self.made.secrets[arguments[0]] = {each.partition("=")[0] for each in of_verb["--from-literal"]}
        elif verb == "apply":
            self._apply([each for name in of_verb["--filename"] for each in manifests(REPOSITORY / name)])
        elif verb == "cp":
            pod, _, folder = arguments[1].partition(":")
            self._find_pod(pod)
            mounts = [each for each in self._mounts() if each["mountPath"] == folder.rstrip("/")]
            if not mounts or any(each.get("readOnly") for each in mounts):
                raise Problem(f"nothing can be written to {folder} in {pod}")
        else:
            self._find_pod(arguments[0])
            self.inside(words[len(before) + 2 :])

    def _mounts(self) -> list[dict[str, Any]]:
        pods = [template["spec"] for each in self.made.applied for template in named(each, "template")]
        return [mount for pod in pods for each in pod["containers"] for mount in each.get("volumeMounts", [])]

    def _apply(self, found: list[dict[str, Any]]) -> None:
        """Raise if what is applied is not one whole installation."""
        self.made.applied += found
        keys = [(each["kind"], each["metadata"]["name"]) for each in self.made.applied]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise Problem(f"they are applied twice: {twice}")
        for each in found:
            try:
                if not each["apiVersion"].startswith("ray.io/"):
                    validate(each, KUBERNETES, strict=True)
            except NotKubernetes as error:
                raise Problem(f"{each['kind']} {each['metadata']['name']}: {error.message}") from error
        for reference in (*named(found, "secretKeyRef"), *named(found, "secretRef")):
            wanted = {reference["key"]} if "key" in reference else set()
            if (
                not wanted <= self.made.secrets.get(reference["name"], {""})
                or reference["name"] not in self.made.secrets
            ):
                raise Problem(f"no secret has {reference}")
        claims = {("PersistentVolumeClaim", each["claimName"]) for each in named(found, "persistentVolumeClaim")}
        if lost := (claims | {("ConfigMap", each["name"]) for each in named(found, "configMap")}) - {*keys}:
            raise Problem(f"pods use {sorted(lost)}, which nothing makes")

    def _find_pod(self, target: str) -> None:
        sets = [each for each in self.made.applied if each["kind"] == "StatefulSet"]
        names = {each["metadata"]["name"]: each["spec"]["replicas"] for each in sets}
        pods = {f"{name}-{number}" for name, replicas in names.items() for number in range(replicas)}
        if target not in pods | {f"statefulset/{name}" for name in names}:
            raise Problem(f"no pod is {target}")


PROGRAMS: dict[str, Callable[[DryRun, Sequence[str]], None]] = {
    "darkroom": DryRun.darkroom,
    "darkroomctl": DryRun.darkroom,
    "ray": DryRun.ray,
    "hf": DryRun.hugging_face,
    ".": DryRun.activate,
    "source": DryRun.activate,
    "make": DryRun.make,
    "pip": DryRun.pip,
    "python": DryRun.python,
    "python3": DryRun.python,
    "curl": DryRun.curl,
    "cp": DryRun.copy,
    "install": DryRun.copy,
    "useradd": DryRun.add_user,
    "usermod": DryRun.use_user,
    "chown": DryRun.use_user,
    "systemctl": DryRun.systemctl,
    "sbatch": DryRun.sbatch,
    "docker": DryRun.docker,
    "kubectl": DryRun.kubectl,
    **dict.fromkeys(("cat", "cd", "echo", "mkdir", "pipx", "pytest"), DryRun.nothing),
    **dict.fromkeys(("aider", "cline", "cn", "codex", "copilot", "opencode", "pi", "qwen"), DryRun.nothing),
}
