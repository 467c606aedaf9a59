"""The output of `darkroom cluster status`."""

import json
from typing import Any

import typer

from server.cli.printing import show_rows

NODES = {"name": "Node", "address": "Address", "state": "State", "gpus": "GPUs", "labels": "Labels", "head": "First"}
ENGINES = {
    "name": "Engine", "kind": "Kind", "state": "State", "node": "Node", "device": "Device",
    "checkpoints": "Checkpoints", "jobs": "Jobs",
    "servers": "Gateways", "workers_started": "Starts",
}  # fmt: skip
GATEWAYS = {"name": "Gateway", "state": "State", "node": "Node", "url": "URL", "calls": "Calls"}


def show_status(status: dict[str, Any], *, as_json: bool = False) -> None:
    """Print three tables, or all of it as JSON."""
    if as_json:
        typer.echo(json.dumps(status, indent=2))
        return
    nodes = [
        {**node, "labels": [f"{key}={value}" for key, value in node["labels"].items()]} for node in status["nodes"]
    ]
    for node in nodes:
        node["head"] = "first" if node["head"] else ""
    show_rows("Nodes", NODES, nodes, as_json=False, as_csv=False)
    show_rows("Engines", ENGINES, status["engines"], as_json=False, as_csv=False)
    show_rows("Gateways", GATEWAYS, status["gateways"], as_json=False, as_csv=False)
