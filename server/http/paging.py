"""Pages of lists, as OpenAI's routes take them: `limit`, `order` and `after` in the query."""

import re
from typing import Literal

from server.errors import BadRequest
from server.http.openapi import Json, parameter

MAX_PAGE = 100
Order = Literal["asc", "desc"]


def page_parameters(what: str) -> list[Json]:
    """The query's parameters, for /openapi.json. `what` is one entry."""
    return [
        parameter("query", "limit", "Entries a page.", type="integer", minimum=1, maximum=MAX_PAGE, default=20),
        parameter("query", "order", f"`desc` begins with the last {what}.", enum=["asc", "desc"], default="desc"),
        parameter("query", "after", f"The page begins after the {what} with this id.", type="string"),
    ]


def read_limit(limit: str) -> int:
    """Raises BadRequest."""
    if not re.fullmatch(r"0*[0-9]{1,3}", limit, re.ASCII) or not 1 <= int(limit[-3:]) <= MAX_PAGE:
        message = f"Invalid 'limit': expected an integer from 1 to {MAX_PAGE}, but got '{limit[:20]}'."
        raise BadRequest(message, param="limit")
    return int(limit)


def read_order(order: str) -> Order:
    """Raises BadRequest."""
    if order not in {"asc", "desc"}:
        raise BadRequest("Invalid value: 'order'. Supported values are: 'asc', 'desc'.", param="order")
    return "asc" if order == "asc" else "desc"
