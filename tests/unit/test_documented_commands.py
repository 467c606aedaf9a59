"""Every command that the documentation and the comments of deploy/ tell people to run, read by its program's rules."""

import copy
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fastapi import FastAPI

from server.app import create_app
from server.data_folders import REPOSITORY
from server.settings import Settings
from tests.support.dry_runs import OPTIONS, DryRun, Made, image
from tests.support.shell_commands import commands_in, commands_of, pages

INSTALLATIONS = ("Dockerfile.cuda", "deploy/darkroom.service", "deploy/kubernetes/single/darkroom.yaml")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    home = tmp_path_factory.mktemp("home")
    return create_app(Settings(home=home, weights=home, model_configs=REPOSITORY / "model_configs", database=None))


@pytest.fixture(scope="module")
def installed(server: FastAPI) -> Made:
    """What the guides take for granted: an installation of each kind."""
    run = DryRun(server)
    for file in INSTALLATIONS:
        run.problems(commands_of(REPOSITORY / file))
    return run.made


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_command_of_a_page_does_what_it_says(page: Path, installed: Made, server: FastAPI) -> None:
    made = copy.deepcopy(installed) if page.suffix == ".md" else Made()
    assert DryRun(server, made).problems(commands_of(page)) == []


APPLY = "kubectl create namespace d; kubectl --namespace d create secret generic postgres --from-literal=password=x; "


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("kubectl apply --filename deploy/kubernetes/", "deploy/kubernetes has no manifests"),
        ("kubectl apply --filename deploy/kubernetes/single.yaml", "there is no deploy/kubernetes/single.yaml"),
        ("kubectl apply --filename deploy/kubernetes/single/", "no secret has"),
        (
            f"{APPLY} kubectl apply --filename deploy/kubernetes/single/ --filename deploy/kubernetes/cluster/",
            "applied twice: [('NetworkPolicy', 'darkroom'), ('PersistentVolumeClaim', 'weights')",
        ),
        ("kubectl --namespace darkroom exec statefulset/darkroom -- darkroom models", "no namespace ['darkroom'] yet"),
        (
            f"{APPLY} kubectl apply --filename deploy/kubernetes/postgres/; kubectl cp weights/x postgres-0:/srv/x",
            "nothing can be written to /srv/x",
        ),
        (f"{APPLY} kubectl --namespace d exec darkroom-0 -- darkroom models", "no pod is darkroom-0"),
        ("docker build --file Dockerfile.cuda --tag darkroom .", "not darkroom"),
        ("docker build -f Dockerfile.cuda --build-arg EXTRAS=postgres,graphs -t IMAGE .", "no extras ['graphs']"),
        ("docker build -f Dockerfile --tag IMAGE .", "there is no Dockerfile"),
        ("docker run --rm --gpu all IMAGE", "docker run has no --gpu"),
        ("docker run --detach --name one IMAGE", "does not come back"),
        ("docker run --rm --env DARKROOM_DEVICES=cuda IMAGE", "no settings ['DARKROOM_DEVICES']"),
        ("docker exec other cat /home/darkroom/data/dev-key", "no container other is running"),
        ("docker compose stop darkroom", "finds no file"),
        ("docker compose --file deploy/compose.yaml exec server darkroom models", "has no ['server']"),
        ("docker compose --file deploy/compose.yaml exec darkroom cat /root/dev-key", "not in the image's home"),
        ("docker compose --file deploy/compose.yaml exec darkroom darkroom models --all", "--all"),
        ("darkroomctl models", "not installed yet"),
        ("systemctl enable --now darkroom", "no unit darkroom yet"),
        ("chown -R darkroom /opt/darkroom/model_configs", "no user darkroom yet"),
        ("export DARKROOM_PORTS=1", "no settings ['DARKROOM_PORTS']"),
        ("darkroom keys set KEY --max-running many", "--max-running"),
        ("darkroom checkpoints add", "Missing parameter: checkpoint"),
        ("ray start --head", "which no command before has activated"),
        (". .venv/bin/activate; ray start --heads", "--heads"),
        ("hf download owner/name --into weights/x", "--into"),
        ("pip install -e '.[postgres]'", "say make install"),
        ("make install EXTRAS=graphs", "no extras ['graphs']"),
        ("make serves", "the Makefile has no serves"),
        ("curl http://127.0.0.1:8080/v1/pictures", "no GET /v1/pictures"),
        ("curl http://127.0.0.1:8080/v1/images/generations -d '{\"prompt\": 1}'", "does not take this body"),
        ("podman run IMAGE", "it is not known what podman needs"),
    ],
)
def test_a_command_that_would_fail_is_found(script: str, problem: str, server: FastAPI) -> None:
    found = DryRun(server).problems(commands_in(script.replace("IMAGE", image())))
    assert problem in " ".join(found)


def test_a_line_that_no_shell_can_parse_is_found() -> None:
    with pytest.raises(ValueError, match="reached EOF"):
        commands_in("echo 'open")


@pytest.mark.parametrize("command", OPTIONS)
def test_the_program_has_the_options(command: str) -> None:
    program, *verbs = command.split()
    ask = [program, "options"] if command == "kubectl" else [program, *verbs, "--help"]
    told = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout if shutil.which(program) else ""
    if (command if verbs else "options") not in told:
        pytest.skip(f"needs {command}")
    names = " ".join(OPTIONS[command]).split()
    assert [name for name in names if not re.search(rf"(^|[\s,]){name}\b", told)] == []
