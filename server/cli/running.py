"""`darkroom jobs`, `sleep`, `wake` and `policy`: the jobs of the running server, its workers, and its refusals."""

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from server.cli.environment import fail, read_settings
from server.cli.printing import CsvFlag, JsonFlag, show_rows

Place = Literal["disk", "host"]

jobs = typer.Typer(no_args_is_help=True, help="What runs and waits on the running server: list, cancel.")
policy = typer.Typer(no_args_is_help=True, help="The moderation policy of the running server: show, reload, try.")


@jobs.command("list")
def list_jobs(as_json: JsonFlag = False, as_csv: CsvFlag = False) -> None:
    """List the image calls, the responses and the chats with an Idempotency-Key that run or wait."""
    headings = {
        "id": "Id", "kind": "Kind", "key_name": "Key", "model": "Model", "state": "State", "service_tier": "Tier",
        "position": "Place", "step": "Step", "steps": "of", "estimated_s": "Ends in (s)", "created_at": "Began",
    }  # fmt: skip
    rows = _ask("GET", "/admin/jobs")["data"]
    show_rows("Jobs", headings, rows, as_json=as_json, as_csv=as_csv)


@jobs.command()
def cancel(job: Annotated[str, typer.Argument(help="The job's id, as `jobs list` shows it.")]) -> None:
    """End any key's job. It is not charged, unless it was already."""
    _ask("DELETE", f"/admin/jobs/{quote(job, safe='')}")
    typer.echo(f"Ended {job}.")


def sleep(
    workers: Annotated[list[str] | None, typer.Argument(help="Names of workers. Default: all.")] = None,
    to: Annotated[
        Place, typer.Option(help="disk: the workers end. host: their weights wait in the host's memory.")
    ] = "disk",
) -> None:
    """Give the device back: move all weights off it, as soon as running jobs have ended. The next call wakes them."""
    _change_sleep("/admin/sleep", {"to": to, "workers": workers or None})


def wake(
    workers: Annotated[list[str] | None, typer.Argument(help="Names of workers. Default: all.")] = None,
) -> None:
    """Load what `sleep`, or DARKROOM_IDLE_UNLOAD_S, has moved off the device, before a call needs it."""
    _change_sleep("/admin/wake", {"workers": workers or None})


def _change_sleep(route: str, body: dict[str, Any]) -> None:
    for worker in _ask("POST", route, body)["data"]:
        place = f" ({worker['place']})" if worker["place"] else ""
        later = f", sleeps after {worker['jobs']} jobs" if worker["sleeps_after_jobs"] else ""
        back = f", back in about {worker['wake_s']:g} s" if worker["wake_s"] else ""
        typer.echo(f"{worker['id']}: {worker['state']}{place}{later}{back}")


@policy.command("show")
def show_policy() -> None:
    """Name the rules and the classifiers of the policy in use."""
    _print_policy(_ask("GET", "/admin/moderation"))


@policy.command("reload")
def reload_policy() -> None:
    """Make the running server read its policy file again. If anything in it is invalid, nothing changes."""
    _print_policy(_ask("POST", "/admin/moderation/reload"))


@policy.command("test")
def try_policy(
    text: Annotated[str, typer.Argument(help="What a call might say.")],
    group: Annotated[str | None, typer.Option(help="The group of the model. Default: every group.")] = None,
    draft: Annotated[Path | None, typer.Option(help="A policy file to try, in place of the one in use.")] = None,
) -> None:
    """Say what the policy finds in a text. Nothing is recorded. Fails if it finds something."""
    body: dict[str, Any] = {"text": text, "group": group}
    if draft is not None:
        try:
            body["policy_toml"] = draft.read_text()
        except OSError as error:
            fail(f"{draft} can't be read: {error.strerror}.")
    elif _ask("GET", "/admin/moderation")["path"] is None:
        fail("The server has no policy (DARKROOM_MODERATION). `--draft` tries one from a file.")
    found = _ask("POST", "/admin/moderation/test", body)
    for finding in found["findings"]:
        typer.echo(f"{finding['policy']} ({finding['category']}): {finding['evidence']}")
    if found["flagged"]:
        raise typer.Exit(1)
    typer.echo("The policy finds nothing in it.")


def _print_policy(summary: dict[str, Any]) -> None:
    typer.echo(summary["path"] or "The server has no policy.")
    for kind in ("rules", "classifiers"):
        if summary[kind]:
            typer.echo(f"{kind.capitalize()}: {', '.join(summary[kind])}")


def _ask(method: str, route: str, body: dict[str, Any] | None = None) -> Any:
    """Return what the running server answers."""
    from server.cli.admin_client import request

    return request(read_settings(), method, route, body).json()
