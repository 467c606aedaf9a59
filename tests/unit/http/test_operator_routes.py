"""Keys, operators, usage and the audit over HTTP, with the database alone behind them."""

import csv
import io
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.accounts.keys import find_key
from server.accounts.ledger import Ledger
from server.accounts.refusals import Refusal, record_refusals
from tests.support.in_process import InProcess
from tests.unit.accounts.helpers import call, capture, result
from tests.unit.accounts.test_operators import CALL
from tests.unit.http.operators import ADMIN, request, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["running"]


async def create(running: InProcess, name: str, **fields: Any) -> dict[str, Any]:
    answer = await request(running, "POST", "/admin/keys", {"name": name, **fields})
    assert answer.status_code == 200, answer.text
    created: dict[str, Any] = answer.json()
    return created


def spend(running: InProcess, key_id: str, call_id: str, price: int) -> None:
    ledger = Ledger(running.services.stores.database, "me")
    ledger.hold(call(call_id, key_id, price))
    capture(ledger, call_id, [result(call_id)])


async def test_a_key_is_created_shown_changed_rotated_and_revoked(running: InProcess) -> None:
    created = await create(running, "studio", monthly_budget="5", max_running=3, days=2, note="floor 3")
    assert (created["monthly_budget"], created["budget"], created["state"]) == ("5.00", None, "valid")
    assert created["groups"] == sorted(running.services.served.catalog.current.groups)
    assert created["expires_at"] == pytest.approx(time.time() + 2 * 86_400, abs=60)
    old = {"Authorization": f"Bearer {created['secret']}"}
    me = (await running.client.get("/v1/darkroom/me", headers=old)).json()
    assert (me["id"], me["available"], me["max_running"], me["running"]) == (created["id"], "5.00", 3, 0)

    changes = {"name": "studio 2", "expires_at": None, "max_running": None, "budget": "9.5"}
    changed = (await request(running, "PATCH", "/admin/keys/studio", changes)).json()
    assert [changed[name] for name in ("name", "expires_at", "max_running", "budget", "monthly_budget", "note")] == [
        "studio 2", None, None, "9.50", "5.00", "floor 3",
    ]  # fmt: skip
    rotated = (await request(running, "POST", f"/admin/keys/{created['id'][:12]}/rotate", {"overlap_s": 60})).json()
    new = {"Authorization": f"Bearer {rotated['secret']}"}
    for headers in (old, new):
        assert (await running.client.get("/v1/darkroom/me", headers=headers)).status_code == 200
    ended = (await request(running, "DELETE", "/admin/keys/studio 2")).json()
    assert ended["state"] == "revoked"
    for headers in (old, new):
        assert (await running.client.get("/v1/darkroom/me", headers=headers)).status_code == 401
    refused = await request(running, "POST", f"/admin/keys/{created['id']}/rotate", {})
    assert refused.json()["error"]["code"] == "key_revoked"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/admin/keys", {}, 400, "name"),
        ("POST", "/admin/keys", {"name": "x", "budget": "much"}, 400, "budget"),
        ("POST", "/admin/keys", {"name": "x", "groups": ["none"]}, 400, "groups"),
        ("POST", "/admin/keys", {"name": "x", "days": 1, "expires_at": 2e9}, 400, "days"),
        ("POST", "/admin/keys", {"name": "x", "colour": "red"}, 400, "colour"),
        ("PATCH", "/admin/keys/nobody", {"name": "y"}, 404, "key"),
        ("POST", "/admin/keys/nobody/rotate", {}, 404, "key"),
        ("DELETE", "/admin/operators/nobody", None, 404, "name"),
        ("GET", "/admin/usage?by=colour", None, 400, "by"),
        ("GET", "/admin/usage?from=lately", None, 400, "from"),
        ("GET", "/admin/usage?from=2026-11-02&to=2026-10-02", None, 400, "to"),
        ("GET", "/admin/calls?status=lost", None, 400, "status"),
        ("GET", "/admin/calls?after=req_none", None, 400, "after"),
        ("GET", "/admin/audit?format=xml", None, 400, "format"),
        ("GET", "/admin/ledger?key=nobody", None, 404, "key"),
    ],
)
async def test_what_is_wrong_is_named(
    running: InProcess, method: str, path: str, body: Any, status: int, param: str
) -> None:
    answer = await request(running, method, path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


async def test_a_budget_below_what_is_spent_is_refused(running: InProcess) -> None:
    key = await create(running, "spender")
    await running.services.stores.database.in_writer(spend, running, key["id"], "spent_1", 20_000)
    answer = await request(running, "PATCH", "/admin/keys/spender", {"budget": "1.00"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "budget")
    shown = (await request(running, "GET", "/admin/keys/spender")).json()
    assert (shown["spent"], shown["spent_this_month"], shown["budget"]) == ("2.00", "2.00", None)


async def test_an_operator_with_a_key_of_its_own_is_named_in_the_audit(running: InProcess) -> None:
    anna = (await request(running, "POST", "/admin/operators", {"name": "anna"})).json()
    headers = {"Authorization": f"Bearer {anna['secret']}"}
    assert (await request(running, "POST", "/admin/operators", {"name": "anna"})).status_code == 409
    created = (await running.client.post("/admin/keys", json={"name": "by anna"}, headers=headers)).json()
    entries = (await request(running, "GET", f"/admin/audit?target={created['id']}")).json()["data"]
    assert [(each["operator"], each["action"]) for each in entries] == [("anna", "key.create")]
    listed = (await request(running, "GET", "/admin/operators")).json()["data"]
    assert ("anna", None) in [(each["name"], each["revoked_at"]) for each in listed]
    assert all("secret" not in each for each in listed)
    assert (await request(running, "DELETE", "/admin/operators/anna")).status_code == 200
    assert (await running.client.get("/admin/keys", headers=headers)).status_code == 401
    assert (await running.client.get("/v1/models", headers=ADMIN)).status_code == 401


async def test_an_operators_session_ends_with_its_key(running: InProcess) -> None:
    bob = (await request(running, "POST", "/admin/operators", {"name": "bob"})).json()
    headers = {"Authorization": f"Bearer {bob['secret']}"}
    signed_in = await running.client.post("/console/session", headers=headers)
    cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
    transport = running.client._transport
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=cookie) as browser:
        assert (await browser.get("/admin/keys")).status_code == 200
        assert (await browser.delete("/admin/keys/nobody")).status_code == 401  # not from the console's page
        own = {"Origin": "http://test"}
        assert (await browser.delete("/admin/keys/nobody", headers=own)).status_code == 404
        assert (await request(running, "DELETE", "/admin/operators/bob")).status_code == 200
        assert (await browser.get("/admin/keys")).status_code == 401
    running.client.cookies.clear()


async def test_who_spent_what_is_equal_in_json_and_csv_and_the_ledger(running: InProcess) -> None:
    keys = [await create(running, f"=team {number}") for number in range(2)]
    for number, key in enumerate(keys):
        await running.services.stores.database.in_writer(
            spend, running, key["id"], f"team_{number}", 1000 * (number + 1)
        )
    report = (await request(running, "GET", "/admin/usage?by=key,model,month")).json()
    mine = {row["key_id"]: row for row in report["data"]}
    assert [mine[key["id"]]["amount"] for key in keys] == ["0.10", "0.20"]
    assert sum(float(row["amount"]) for row in report["data"]) == pytest.approx(float(report["total"]["amount"]))
    answer = await request(running, "GET", "/admin/usage?by=key,model,month&format=csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="usage.csv"'
    table = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["amount"] for row in table] == [row["amount"] for row in report["data"]]
    assert {row["key_name"] for row in table} >= {"'=team 0", "'=team 1"}  # not a formula
    ledger = list(csv.DictReader(io.StringIO((await request(running, "GET", "/admin/ledger?format=csv")).text)))
    assert sum(float(row["amount"]) for row in ledger) == pytest.approx(float(report["total"]["amount"]))
    own = (
        await running.client.get(
            "/v1/darkroom/usage?by=day,model", headers={"Authorization": f"Bearer {keys[1]['secret']}"}
        )
    ).json()
    assert own["total"] == {
        "calls": 1, "images": 1, "amount": "0.20", "chats": 0, "prompt_tokens": 0, "completion_tokens": 0,
    }  # fmt: skip
    page = (await request(running, "GET", "/admin/ledger?limit=1")).json()
    assert (page["data"][0]["call_id"], page["has_more"]) == ("team_1", True)
    after = (await request(running, "GET", f"/admin/ledger?limit=1&after={page['last_id']}&key==team 0")).json()
    assert [each["call_id"] for each in after["data"]] == ["team_0"]
    checked = (await request(running, "POST", "/admin/ledger/check")).json()
    assert not checked["clean"]  # these images have no files
    assert "has no file" in checked["problems"][0]


async def test_a_long_list_is_streamed_whole(running: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.http.listings.CSV_ROWS", 2)
    answer = await request(running, "GET", "/admin/audit?format=csv")
    entries = (await request(running, "GET", "/admin/audit?limit=100&order=asc")).json()["data"]
    assert [row["id"] for row in csv.DictReader(io.StringIO(answer.text))] == [each["id"] for each in entries]
    assert len(entries) > 4


async def test_a_key_sees_its_own_calls_and_refusals_are_the_operators(running: InProcess) -> None:
    mine, other = await create(running, "mine"), await create(running, "other")
    log, database = running.services.stores.call_log, running.services.stores.database
    for number, key in enumerate((mine, other)):
        one = replace(CALL, id=f"req_own_{number}", job=f"img_own_{number}", key_id=key["id"])
        await log.in_writer(log.add, one)
    headers = {"Authorization": f"Bearer {mine['secret']}"}
    listed = (await running.client.get("/v1/darkroom/calls", headers=headers)).json()["data"]
    assert [(each["id"], each["price"], each["run_s"]) for each in listed] == [("req_own_0", "0.10", 1.0)]
    assert "prompt" not in listed[0]
    shown = (await running.client.get("/v1/darkroom/calls/img_own_0", headers=headers)).json()
    assert (shown["prompt"], shown["parameters"]) == ("a boat", {"seed": 7})
    assert (await running.client.get("/v1/darkroom/calls/req_own_1", headers=headers)).status_code == 404
    assert (await request(running, "GET", "/admin/calls/req_own_1")).json()["key_name"] == "other"
    found = (await request(running, "GET", "/admin/calls?key=other&status=succeeded")).json()["data"]
    assert [each["id"] for each in found] == ["req_own_1"]
    key = find_key(database, "mine")
    refusal = Refusal("img_9", key.id, "images.generations", "m", "input", "p", "violence", "'axe'", key.created_at)
    await database.in_writer(record_refusals, database, [refusal])
    for path in ("/admin/refusals", "/admin/refusals?key=mine&limit=1"):
        (shown,) = (await request(running, "GET", path)).json()["data"]
        assert (shown["key_name"], shown["evidence"]) == ("mine", "'axe'")


async def test_images_and_responses_are_listed_and_deleted_by_their_owner(running: InProcess) -> None:
    drawn = await running.client.post("/v1/images/generations", json={"prompt": "a boat", "size": "256x256"})
    url = drawn.json()["data"][0]["url"]
    (entry,) = (await running.client.get("/v1/darkroom/results")).json()["data"]
    assert (entry["url"], entry["thumbnail"]) == (url, f"{url}?w=320")
    assert (entry["width"], entry["parents"]) == (256, [])
    path = f"/v1/darkroom/results/{entry['id']}"
    other = await running.another_key()
    assert (await running.client.delete(path, headers=other)).status_code == 404
    for method, favourite in (("PUT", True), ("DELETE", False), ("PUT", True)):
        assert (await running.client.request(method, f"{path}/favourite", headers=other)).status_code == 404
        assert (await running.client.request(method, f"{path}/favourite")).json() == {**entry, "favourite": favourite}
        found = (await running.client.get("/v1/darkroom/results?favourite=true")).json()["data"]
        assert [one["id"] for one in found] == [entry["id"]] * favourite
    file = f"/cdn/{entry['id']}"
    assert (await running.client.get(file)).status_code == 200
    assert (await running.client.delete(path)).json()["deleted"]
    assert (await running.client.get(file)).status_code == 404
    assert (await running.client.get(path)).status_code == 404
    said = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello\nthere"}]}]}
    first = (await running.client.post("/v1/responses", json=said)).json()
    second = {"input": "And now?", "previous_response_id": first["id"]}
    await running.client.post("/v1/responses", json=second)
    listed = (await running.client.get("/v1/darkroom/responses")).json()["data"]
    titles = {each["title"]: each["previous_response_id"] for each in listed}  # both may begin in one second
    assert titles.items() >= {("And now?", first["id"]), ("Hello there", None)}
    roots = [each["id"] for each in (await running.client.get("/v1/darkroom/responses?roots=true")).json()["data"]]
    assert first["id"] in roots
    assert all(each["id"] not in roots for each in listed if each["previous_response_id"])


async def test_a_conversation_is_named_listed_and_deleted_as_a_whole_by_its_owner(running: InProcess) -> None:
    async def say(text: str, before: str | None = None) -> str:
        answer = await running.client.post("/v1/responses", json={"input": text, "previous_response_id": before})
        return str(answer.json()["id"])

    root, aside = await say("Hello"), await say("Aside")
    middle = await say("And now?", root)
    branches = {await say("left", middle), await say("right", middle)}
    path, other = f"/v1/darkroom/responses/{root}", await running.another_key()
    assert (await running.client.patch(path, json={"title": "mine"}, headers=other)).status_code == 404
    assert (await running.client.delete(path, headers=other)).status_code == 404
    for title, shown in (("  My boat ", "My boat"), (" ", "Hello")):
        assert (await running.client.patch(path, json={"title": title})).json()["title"] == shown
    for wrong in ({}, {"title": "x" * 201}, {"title": 7}, {"name": "x"}):
        error = (await running.client.patch(path, json=wrong)).json()["error"]
        assert error["param"] in {"title", "name"}, error
    listed = (await running.client.get(f"/v1/darkroom/responses?root={root}&order=asc")).json()["data"]
    assert {one["id"] for one in listed} == {root, middle, *branches}
    gone = (await running.client.delete(path)).json()
    assert (gone["deleted"], gone["responses"][2:]) == (True, [middle, root])
    assert {*gone["responses"][:2]} == branches
    left = {one["id"] for one in (await running.client.get("/v1/darkroom/responses")).json()["data"]}
    assert (aside in left, left & {root, middle, *branches}) == (True, set())
    assert (await running.client.delete(path)).status_code == 404


async def test_a_key_that_ended_says_how(running: InProcess) -> None:
    revoked, expired = await create(running, "gone"), await create(running, "old", days=1)
    await request(running, "DELETE", "/admin/keys/gone")
    running.services.stores.database.clock.now = lambda: time.time() + 2 * 86_400  # type: ignore[method-assign]
    for secret, why in ((revoked["secret"], "was revoked"), (expired["secret"], "has expired"), ("sk-dr-x", "unknown")):
        answer = await running.client.get("/v1/models", headers={"Authorization": f"Bearer {secret}"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], why in error["message"]) == (401, "invalid_api_key", True), error
    del running.services.stores.database.clock.now
