"""`darkroom cluster`: engines on several machines."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from server.cli.environment import read_settings
from server.cli.printing import JsonFlag
from server.errors import StartError

app = typer.Typer(no_args_is_help=True, help="Engines on several machines, by Ray (docs/guides/cluster.md).")

Name = Annotated[
    str | None, typer.Option(help="A name for this node, its own among the nodes. Default: the host's name.")
]
Ip = Annotated[str | None, typer.Option(help="This node's address in the private network, if it has several.")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", help="NAME=VALUE, for `nodes` in cluster.toml; may be repeated.")
]


@app.command()
def token() -> None:
    """Print the cluster's token, which is made if there is none, to copy it to every node."""
    from server.cli.cluster.token import make_token

    path = make_token(read_settings().home)
    typer.echo(path.read_text().strip())
    typer.echo(f"It is in {path}. Who has it may run code on every node.", err=True)


@app.command()
def up(
    config: Annotated[Path, typer.Option(help="cluster.toml: see docs/guides/cluster.md.")],
    name: Name = None,
    ip: Ip = None,
    label: Labels = None,
) -> None:
    """Make this the first node of a cluster, and start its engines and gateways."""
    from server.cli.cluster import starting

    starting.start_cluster(read_settings(), config, *_identity(name, label), ip)


@app.command()
def join(
    head: Annotated[str, typer.Option(help="HOST:PORT of the first node, as `up` printed it.")],
    name: Name = None,
    ip: Ip = None,
    label: Labels = None,
) -> None:
    """Add this node to a cluster."""
    from server.cli.cluster import starting

    starting.join_cluster(read_settings(), head, *_identity(name, label), ip)


@app.command()
def status(as_json: JsonFlag = False) -> None:
    """Show nodes, engines and gateways."""
    from server.cli.cluster import starting, status_tables

    status_tables.show_status(starting.read_status(read_settings()), as_json=as_json)


@app.command()
def drain(
    node: Annotated[str, typer.Argument(help="A node, by its name or address.")],
    limit_s: Annotated[float, typer.Option(help="How long to wait for what runs there.")] = 900,
) -> None:
    """Take a node out of use, and wait until its jobs and calls have ended. It can be stopped then."""
    from server.cli.cluster import starting

    starting.drain_node(read_settings(), node, limit_s)


@app.command()
def down() -> None:
    """Stop what runs here: on the first node the whole cluster, when its calls have ended; on others the node alone."""
    from server.cli.cluster import starting

    starting.stop(read_settings())


def _identity(name: str | None, labels: list[str] | None) -> tuple[str, dict[str, str]]:
    pairs = [label.partition("=") for label in labels or ()]
    if wrong := [key for key, equals, value in pairs if not (key and equals and value)]:
        raise StartError(f"--label: expected NAME=VALUE, got {wrong[0]!r}")
    return name or socket.gethostname().partition(".")[0], {key: value for key, _, value in pairs}
