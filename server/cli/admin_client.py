"""What `darkroom swap` and `darkroom reload` do: ask the server of this home, and say what came of it."""

from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from server.errors import StartError
from server.settings import Settings


def weights_path(settings: Settings, given: str) -> str:
    """A path as catalog files have it: below the weights where that is so, else absolute."""
    if (settings.weights / given).exists():
        return given
    path = Path(given).resolve()
    weights = settings.weights.resolve()
    return str(path.relative_to(weights)) if path.is_relative_to(weights) else str(path)


def change_catalog(settings: Settings, route: str, body: dict[str, str]) -> None:
    """Send the request and show the answer. Raises StartError with what the server has against it."""
    console = Console(highlight=False, soft_wrap=True)
    with console.status("Loading and warming; calls go on meanwhile ..."):
        answer = _post(settings, route, body)
    for word in ("added", "removed", "changed"):
        if answer[word]:
            console.print(f"{word.capitalize():8} {', '.join(answer[word])}", markup=False)
    for name, description in answer["loaded"].items():
        console.print(f"Loaded   {name}: {description}", markup=False)
    if not (answer["added"] or answer["removed"] or answer["changed"]):
        console.print("No model has changed; aliases, groups and the default are now as the files say.")
    if not answer["saved"]:
        console.print("The catalog's file could not be written, so this ends when the server does.", style="yellow")


def _post(settings: Settings, route: str, body: dict[str, str]) -> dict[str, Any]:
    address = settings.local_url
    try:
        key = settings.admin_key.read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.post(f"{address}{route}", json=body, headers=headers, timeout=None, trust_env=False)  # noqa: S113
    except FileNotFoundError as error:
        raise StartError(f"No server has run with the home {settings.home} (DARKROOM_HOME).") from error
    except PermissionError as error:
        raise StartError(f"{settings.admin_key} can't be read: run this as the user that runs the server.") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StartError(f"No server answers at {address}: {error}") from error
    if answer.status_code != 200:
        raise StartError(answer.json()["error"]["message"])
    known: dict[str, Any] = answer.json()
    return known
