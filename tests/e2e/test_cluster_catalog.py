"""One catalog for two servers on one PostgreSQL: all swap or none, and one that was gone takes what the other has.

The workers are plain ones, without torch; WORKERS=real has the server's.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.gateways import Pair, two_gateways
from tests.support.harness import PLAIN, Server, free_port, frozen, until
from tests.support.tiny_checkpoints import make_sd

pytestmark = pytest.mark.nightly

MODEL = "alpha-image-2-count"
FILE = "tiny.toml"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Each has its own catalog and weights. `other` is the same on both, `damaged` is not."""
    folder = tmp_path_factory.mktemp("catalogs")
    with two_gateways(folder, PLAIN, own_files=True, chat=False) as pair:
        for name in ("other", "damaged"):
            make_sd(pair.a.weights / name)
            shutil.copytree(pair.a.weights / name, pair.b.weights / name)
        for file in (pair.b.weights / "damaged" / "unet").glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1000])
        yield pair


def admin(server: Server, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    headers["Authorization"] = f"Bearer {server.admin_key}"
    return httpx.request(method, f"{server.base}{path}", json=body, headers=headers, timeout=280, trust_env=False)


def swap(server: Server, checkpoint: str) -> httpx.Response:
    return admin(server, "POST", "/admin/swap", {"model": MODEL, "checkpoint": checkpoint})


def served(pair: Pair) -> list[tuple[list[str], int, str]]:
    """Of each server the checkpoints, the version, and the file's checkpoint."""
    found = []
    for server in pair.servers:
        state = server.readiness()
        text = (server.configs / FILE).read_text()
        checkpoint = next(line for line in text.splitlines() if line.startswith("checkpoint"))
        found.append((list(state["checkpoints"]), state["catalog"]["version"], checkpoint))
    return found


def both(name: str, version: int) -> list[tuple[list[str], int, str]]:
    return [([name], version, f'checkpoint = "{name}"')] * 2


def test_a_swap_and_its_undo_change_both_servers(pair: Pair) -> None:
    assert served(pair) == both("tiny", 1)
    changed = swap(pair.a, "other")
    assert changed.status_code == 200, changed.text
    assert (changed.json()["changed"], changed.json()["saved"]) == ([MODEL], True)
    assert served(pair) == both("other", 2)
    for server in pair.servers:
        drawn = server.openai(pair.key()).images.generate(model=MODEL, prompt="a boat", size="256x256")
        assert drawn.data
    undone = admin(pair.b, "POST", "/admin/undo")
    assert undone.status_code == 200, undone.text
    assert served(pair) == both("tiny", 3)
    assert admin(pair.b, "POST", "/admin/undo").json()["error"]["message"] == "There is no swap to undo."


def test_files_that_were_edited_at_one_become_those_of_both(pair: Pair) -> None:
    file = pair.b.configs / FILE
    mine = file.read_text().replace('price = "0.10"', 'price = "0.20"')
    file.write_text(mine)
    assert swap(pair.a, "other").status_code == 200
    assert [state[:2] for state in served(pair)] == [(["other"], 4)] * 2
    assert file.read_text() == mine  # its log says so
    assert admin(pair.a, "POST", "/admin/undo").status_code == 200
    reloaded = admin(pair.b, "POST", "/admin/reload", None, Prefer="respond-async")
    job = reloaded.headers["location"]
    until(lambda: admin(pair.a, "GET", job).json()["state"] == "succeeded")  # the other server tells of it too
    assert (pair.a.configs / FILE).read_text() == file.read_text()
    assert served(pair) == both("tiny", 6)
    unknown = admin(pair.a, "GET", "/admin/swaps/swap_none")
    assert unknown.status_code == 404


def test_long_files_and_what_can_be_undone_of_them_are_sent_to_the_other(pair: Pair) -> None:
    file, version = pair.a.configs / FILE, served(pair)[0][1]
    file.write_text(file.read_text() + f"# {'a note ' * 10_000}\n")
    assert admin(pair.a, "POST", "/admin/reload").status_code == 200
    changed = swap(pair.a, "other")
    assert changed.status_code == 200, changed.text
    assert admin(pair.b, "POST", "/admin/undo").status_code == 200
    assert served(pair) == both("tiny", version + 3)
    assert (pair.b.configs / FILE).read_text() == file.read_text()


def test_what_one_server_can_not_prepare_changes_nothing_on_both(pair: Pair) -> None:
    before = served(pair)
    refused = swap(pair.a, "damaged")
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert message.startswith(f"Nothing has changed on any server. At {pair.b.settings['gateway_url']}: ")
    assert "the weights of damaged are not those of the other servers" in message
    refused = swap(pair.b, "damaged")
    assert (
        f"At {pair.b.settings['gateway_url']}: The new checkpoint can't be used" in refused.json()["error"]["message"]
    )
    (pair.a.weights / "only-here").symlink_to(pair.a.weights / "other")
    assert "only-here: No such file" in swap(pair.a, "only-here").json()["error"]["message"]
    assert swap(pair.a, "nowhere").status_code == 400
    assert served(pair) == before


def test_a_server_that_runs_and_can_not_be_reached_is_named(pair: Pair) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    row = "INSERT INTO gateways (owner, url, started_at, lease_until) VALUES ('lost', %s, %s, %s)"
    with psycopg.connect(pair.url.replace("+psycopg", "")) as connection:
        connection.execute(row, (url, time.time(), time.time() + 3600))
    before = served(pair)
    refused = swap(pair.a, "other")
    with psycopg.connect(pair.url.replace("+psycopg", "")) as connection:
        connection.execute("DELETE FROM gateways WHERE owner = 'lost'")
    assert refused.status_code == 409
    message = refused.json()["error"]["message"]
    assert f"The server at {url} does not answer this one" in message
    assert "Stop it, or let the servers reach each other there, and try again." in message
    assert served(pair) == before


def test_a_server_that_is_gone_is_left_out_and_takes_the_current_catalog_when_it_is_back(pair: Pair) -> None:
    pair.b.kill()
    changed = swap(pair.a, "other")  # answered once the lease of the other has run out
    assert changed.status_code == 200, changed.text
    pair.b.start()
    assert served(pair)[1][0] == ["other"]
    until(lambda: served(pair)[0] == served(pair)[1])


def test_a_server_that_dies_while_it_makes_a_change_leaves_the_other_as_it_was(pair: Pair) -> None:
    before = served(pair)[1]
    target = "tiny" if before[0] == ["other"] else "other"
    with pair.held_up(pair.b):
        body = {"model": MODEL, "checkpoint": target}
        job = admin(pair.a, "POST", "/admin/swap", body, Prefer="respond-async").headers["location"]
        until(lambda: admin(pair.a, "GET", job).json()["stage"] == "loading")
        pair.a.kill()
    assert pair.b.readiness()["catalog"] == {"version": before[1], "problem": None}
    assert swap(pair.b, target).status_code == 200  # once the turn of the dead one is over
    pair.a.start()
    until(lambda: served(pair) == both(target, before[1] + 1))


def test_a_server_that_was_given_up_while_it_lived_catches_up(pair: Pair) -> None:
    version = served(pair)[0][1]
    assert pair.b.process is not None
    with frozen(pair.b):
        assert swap(pair.a, "other").status_code == 200
    until(lambda: served(pair) == both("other", version + 1))
    pair.b.wait_ready()


def test_a_server_with_other_weights_does_not_start(pair: Pair, tmp_path: Path) -> None:
    name = served(pair)[0][0][0]
    pair.b.stop()
    config = pair.b.weights / name / "scheduler" / "scheduler_config.json"
    text = config.read_text()
    config.write_text(text + " ")
    ended = pair.b.darkroom("serve")
    assert ended.returncode == 1
    assert f"the weights of {name} are not those of the other servers" in ended.stderr
    config.write_text(text)
    pair.b.start()
    assert served(pair)[0] == served(pair)[1]


def test_a_reload_serves_weights_that_were_replaced_on_both(pair: Pair) -> None:
    assert admin(pair.b, "POST", "/admin/reload").json()["changed"] == []
    name = served(pair)[0][0][0]
    files = [next((each.weights / name / "unet").glob("*.safetensors")) for each in pair.servers]
    for number, file in enumerate(files):
        os.utime(file, ns=(number, number))  # each copy has a date of its own
    assert admin(pair.a, "POST", "/admin/reload").json()["changed"] == []
    content = files[0].read_bytes()
    for file in files:
        part = file.with_suffix(".part")
        part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(part, ns=(0, 0))
        part.replace(file)
    assert admin(pair.a, "POST", "/admin/reload").json()["changed"] == [MODEL]
    assert [each.readiness()["catalog"]["problem"] for each in pair.servers] == [None, None]


def test_a_browser_that_signs_in_at_one_server_is_known_at_the_other(pair: Pair) -> None:
    with httpx.Client(trust_env=False, timeout=60) as browser:
        key = {"Authorization": f"Bearer {pair.key()}"}
        assert browser.post(f"{pair.a.base}/console/session", headers=key).status_code == 204
        for server in pair.servers:  # cookies do not know ports
            assert browser.get(f"{server.base}/console/session").json()["key"]["name"] == "test"
            assert browser.get(f"{server.base}/v1/models").status_code == 200
        origin = {"Origin": pair.b.base}
        assert browser.delete(f"{pair.b.base}/console/session", headers=origin).status_code == 204
        assert browser.get(f"{pair.a.base}/v1/models").status_code == 401


def test_operators_see_every_server_at_any_of_them(pair: Pair) -> None:
    def cards(server: Server) -> dict[str, Any]:
        return {card["url"]: card for card in admin(server, "GET", "/admin/gateways").json()["data"]}

    until(lambda: all(card["catalog_version"] for card in cards(pair.a).values()))
    for asked, server in enumerate(pair.servers):
        found = cards(server)
        assert found.keys() == {each.settings["gateway_url"] for each in pair.servers}
        for number, other in enumerate(pair.servers):
            card = found[other.settings["gateway_url"]]
            assert (card["alive"], card["asked"]) == (True, number == asked)
            assert card["state"]["image"][0]["worker_pid"] == other.readiness()["worker_pid"]
            assert card["catalog_version"] == card["state"]["catalog"]["version"]
    for path in ("state", "catalog/settle"):
        assert admin(pair.a, "GET", f"/cluster/{path}").status_code in {404, 405}
        assert httpx.get(f"{pair.a.settings['gateway_url']}/cluster/{path}", trust_env=False).status_code == 403
