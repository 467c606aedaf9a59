"""Commands of the running server, such as `darkroom swap`: send the request and print the outcome."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from server.errors import StartError
from server.secret_files import read_secret
from server.settings import Settings


def weights_path(settings: Settings, text: str) -> str:
    """Return a path as catalog files have it: relative to the weights folder if it is inside, else absolute.

    Raises StartError, which names the folders that were searched and their content.
    """
    if (settings.weights / text).exists():
        return text
    path = Path(text).resolve()
    if not path.exists():
        looked = dict.fromkeys([settings.weights / text, path])
        found = sorted(each.name for each in settings.weights.glob("*") if not each.name.startswith("."))
        raise StartError(
            f"There is no checkpoint at {' or '.join(map(str, looked))}. "
            f"{settings.weights} has: {', '.join(found) or 'nothing'}."
        )
    weights = settings.weights.resolve()
    return str(path.relative_to(weights)) if path.is_relative_to(weights) else str(path)


def change_catalog(settings: Settings, route: str, body: dict[str, Any]) -> None:
    """Send the request and print the changes. Raises StartError with the server's error message."""
    console = Console(highlight=False, soft_wrap=True)
    with console.status("Loading and warming up; the server keeps answering calls ..."):
        changes: dict[str, Any] = request(settings, "POST", route, body).json()
    for change in ("added", "removed", "changed"):
        if changes[change]:
            console.print(f"{change.capitalize():8} {', '.join(changes[change])}", markup=False)
    for name, description in changes["loaded"].items():
        console.print(f"Loaded   {name}: {description}", markup=False)
    for setting in changes["settings"]:
        change = f"{setting['key']}: {_show_setting(setting['old'])} -> {_show_setting(setting['new'])}"
        console.print(f"Setting  {change}{_why(setting)}", markup=False)
    for setting in changes["kept"]:
        console.print(f"Kept     {setting['key']}: {_show_setting(setting['old'])}{_why(setting)}", markup=False)
    if changes["settings"]:
        console.print("`darkroom undo` takes the swap back; `darkroom swap --keep` keeps the settings.")
    if not (changes["added"] or changes["removed"] or changes["changed"]):
        console.print("No model has changed. Aliases, groups and the default model are now as in the catalog files.")
    if not changes["saved"]:
        console.print(
            "The catalog file could not be written, so the change is lost when the server stops.", style="yellow"
        )


def _why(setting: Mapping[str, Any]) -> str:
    return f"  ({setting['why']})" if setting["why"] else ""


def _show_setting(value: Any) -> Any:
    """Return a setting's value; a table as its keys and values."""
    return ", ".join(f"{key} = {each}" for key, each in value.items()) if isinstance(value, dict) else value


def request(
    settings: Settings, method: str, route: str, body: dict[str, Any] | None = None, secret: str | None = None
) -> httpx.Response:
    """Send a request to the running server, as its operator or with the secret of a key, and return the answer. Raises
    StartError with its error message."""
    address = settings.local_url
    headers = {"Authorization": f"Bearer {secret}"} if secret else _admin_headers(settings)
    url = f"{address}{route}"
    try:
        response = httpx.request(method, url, json=body, headers=headers, timeout=None, trust_env=False)  # noqa: S113
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        hint = "Start it, or set DARKROOM_HOST and DARKROOM_PORT as the server has them."
        raise StartError(f"No server answers at {address}: {error}. {hint}") from error
    return check_response(response)


def read_if_running(settings: Settings, route: str, timeout_s: float) -> Any:
    """Return what the running server says at a route; None if no Darkroom answers there."""
    try:
        url, headers = f"{settings.local_url}{route}", _admin_headers(settings)
        response = httpx.get(url, headers=headers, timeout=timeout_s, trust_env=False)
        body = response.json()
    except (StartError, OSError, httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
    return body if "x-request-id" in response.headers and "error" not in body else None


def _admin_headers(settings: Settings) -> dict[str, str]:
    """Return the headers of the server's own operator. Raises StartError if its key can't be read."""
    try:
        return {"Authorization": f"Bearer {read_secret(settings.admin_key)}"}
    except FileNotFoundError as error:
        raise StartError(settings.no_server_message) from error


def check_response(response: httpx.Response) -> httpx.Response:
    """Return an answer of Darkroom's. Raises StartError with the message of its error, and for another program."""
    if response.status_code != 200 or "x-request-id" not in response.headers:
        where = response.url.copy_with(path="/", query=None)
        raise StartError(_message(response) or f"{where} answers {response.status_code}: that is no Darkroom server.")
    return response


def _message(response: httpx.Response) -> str | None:
    """Return the message of an error of this API; None for the answer of another program."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None
