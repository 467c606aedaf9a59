"""Refusals of endpoints that a protocol has and this server lacks."""

from collections.abc import Sequence

from fastapi import APIRouter

from server.errors import NotFound

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def refuse(router: APIRouter, paths: Sequence[str], message: str, methods: Sequence[str] = METHODS) -> None:
    """Add routes that answer 404 with this message, so that no endpoint of the protocol looks like a mistyped URL."""

    async def answer() -> None:
        raise NotFound(message, code="unsupported_endpoint")

    for path in paths:
        router.add_api_route(path, answer, methods=[*methods], include_in_schema=False)


def refuse_endpoints(router: APIRouter, prefix: str, endpoints: dict[str, str], served: str) -> None:
    """Refuse endpoints below the prefix. `endpoints` has their names and the beginning of a sentence about them, such
    as "Batches are"; `served` is the sentence that names the endpoints that there are instead."""
    for name, what in endpoints.items():
        paths = (f"{prefix}/{name}", f"{prefix}/{name}/{{rest:path}}")
        refuse(router, paths, f"{what} not supported by this server. {served}")
