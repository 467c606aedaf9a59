"""Metrics, the log of calls and the ledger name an error by a code, whatever its body has."""

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import server.app  # noqa: F401  # all errors are defined
from server.errors import ApiError, ReplayedError
from tests.support.in_process import InProcess, in_process

CODE = re.compile(r"[a-z][a-z0-9_]*")
LABELS = re.compile(r'(?:code|outcome)="([^"]*)"')


def all_errors(base: type[ApiError] = ApiError) -> list[type[ApiError]]:
    return [base, *(error for child in base.__subclasses__() for error in all_errors(child))]


@pytest.mark.parametrize("kind", all_errors())
def test_each_error_has_a_code_for_its_label(kind: type[ApiError]) -> None:
    error = kind.__new__(kind)
    error.code = kind.default_code
    assert CODE.fullmatch(error.label)
    assert error.code is None or error.label == error.code


@pytest.mark.parametrize(
    ("status", "code", "label"),
    [
        (404, None, "not_found"),
        (400, "BadRequestError", "bad_request"),
        (401, 401, "unauthorized"),
        (429, "rate_limit_exceeded", "rate_limit_exceeded"),
        (529, None, "error"),
    ],
)
def test_a_code_in_another_style_is_labelled_by_its_status(status: int, code: Any, label: str) -> None:
    error = ReplayedError(status, {"message": "of an upstream", "code": code})
    assert error.label == label
    assert error.body()["error"]["code"] == code


async def bodies(app: InProcess) -> list[Any]:
    """The codes of refused requests that have none, and the answer of a call that ends by an exception."""
    client = app.client
    answers = [
        await client.post("/v1/images/generations", content=b"{", headers={"content-type": "application/json"}),
        await client.post("/v1/chat/completions", content=b"[1]", headers={"content-type": "application/json"}),
        await client.get("/v1/responses/resp_none"),
        await client.get("/v1/nothing"),
        await client.get("/v1/models", headers={"Authorization": "Bearer wrong"}),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 404, 404, 401]
    return [answer.json()["error"]["code"] for answer in answers]


async def test_labels_are_codes_where_bodies_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_process(tmp_path) as app:
        assert None in await bodies(app)

        def fail(*_: object) -> None:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(app.services.engines.image, "submit", fail)
        body = {"model": "alpha-image-2-count", "prompt": "a boat", "size": "256x256"}
        assert (await app.client.post("/v1/images/generations", json=body)).status_code == 500
        labels = set(LABELS.findall((await app.client.get("/metrics")).text))
        await app.services.running.background.join()
        with app.services.stores.database.read() as session:
            reasons = session.scalars(text("SELECT reason FROM holds")).all()
            logged = session.scalars(text("SELECT code FROM call_log WHERE status >= 400")).all()
    assert {"bad_request", "not_found", "internal_server_error"} <= labels
    assert all(CODE.fullmatch(label) for label in labels), labels
    assert reasons == ["internal_server_error"]
    assert logged
    assert all(code is not None and CODE.fullmatch(code) for code in logged), logged
