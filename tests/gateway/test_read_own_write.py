"""A client reads what it has written, and its browser never shows an answer that is not the one of now."""

import json
import os
import shutil
import subprocess
import threading

import pytest

from processor.client import Client
from processor.gateway import endpoints
from processor.gateway.application import WEB
from tests.gateway.memory import RIGHTS


def get(memory_world, query="", token=None, **headers):
    """The status, headers and body of a GET of record 1."""
    bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
    status, heads, text = memory_world.gateway.get(f"/v1/topics/orders/records/1{query}", bearer | headers)
    return status, heads, json.loads(text) if text else None


def test_a_get_waits_for_the_version_of_an_ack(memory_world):
    """A GET with the version of a POST's ack answers when the view has it, and never with the record before."""
    feed = memory_world.feeds["orders"]
    memory_world.put(1, qty=1)
    memory_world.gateway.call(feed.fall_behind)
    status, _, text = memory_world.gateway.get("/v1/topics/orders/delta_publish", data=b'{"id": 1, "qty": 2}')
    version = json.loads(text)["version"]
    assert (status, version) == (200, 2)
    assert get(memory_world)[2]["data"] == {"id": 1, "qty": 1}
    timer = threading.Timer(0.2, lambda: memory_world.gateway.call(feed.catch_up))
    timer.start()
    status, _, answer = get(memory_world, f"?min_version={version}")
    timer.join()
    assert (status, answer["version"], answer["data"]) == (200, 2, {"id": 1, "qty": 2})


def test_a_get_waits_for_the_end_of_a_record(memory_world):
    """A GET with the version of a delete's ack says that there is no record, and not that it may come."""
    memory_world.put(1, qty=1)
    _, _, text = memory_world.gateway.get("/v1/topics/orders/sow_delete?key=1", data=b"")
    version = json.loads(text)["version"]
    assert version == 2
    assert get(memory_world, f"?min_version={version}")[0] == 404


def test_a_version_that_does_not_come_is_not_yet(memory_world, monkeypatch):
    """A version that does not come in time is 503 with the reason not_yet; one that is no number is 400."""
    monkeypatch.setattr(endpoints, "MIN_VERSION_TIMEOUT_S", 0.05)
    memory_world.put(1, qty=1)
    status, headers, problem = get(memory_world, "?min_version=9")
    assert (status, problem["reason"], headers["retry-after"]) == (503, "not_yet", "1")
    assert get(memory_world, "?min_version=1")[0] == 200
    assert get(memory_world, "?min_version=-1")[0] == 400
    assert get(memory_world, "?min_version=x")[0] == 400


def test_a_version_of_a_hidden_record_is_not_yet(guarded, monkeypatch):
    """With min_version, a record that the user may not see is answered as none."""
    monkeypatch.setattr(endpoints, "MIN_VERSION_TIMEOUT_S", 0.05)
    answers = []
    for key in (2, 9):
        path = f"/v1/topics/orders/records/{key}?min_version=1"
        status, _, text = guarded.world.gateway.get(path, {"Authorization": "Bearer t-bob"})
        answers.append((status, text))
    assert answers[0] == answers[1]
    assert answers[0][0] == 503


def test_the_python_client_reads_what_it_wrote(memory_world):
    """`get` with the version of an ack waits for it, also for the end of a record, and fails if it does not come."""
    feed = memory_world.feeds["orders"]
    with Client("py", gateway=f"http://{memory_world.gateway.address}") as client:
        memory_world.gateway.call(feed.fall_behind)
        version = client.publish("orders", {"id": "a/b", "qty": 1}, ack="persisted").result(60).version
        timer = threading.Timer(0.2, lambda: memory_world.gateway.call(feed.catch_up))
        timer.start()
        message = client.get("orders", "a/b", min_version=version)
        timer.join()
        assert (message.version, message.data) == (version, {"id": "a/b", "qty": 1})
        version = client.sow_delete("orders", "a/b", ack="persisted").result(60).version
        assert client.get("orders", "a/b", min_version=version) is None


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_javascript_client_reads_what_it_wrote(memory_world):
    """`get` with the version of an ack has the record of the ack, null for one that ended, and says not_yet."""
    program = """
      import { connect } from '%s';
      const connection = await connect(process.env.GATEWAY_URL);
      const said = [];
      for (const qty of [1, 2, 3]) {
        const { version } = await connection.publish('orders', { id: 'a/b', qty }, { ack: 'persisted' });
        said.push((await connection.get('orders', 'a/b', { minVersion: version })).data.qty);
      }
      const { version } = await connection.sowDelete('orders', { key: 'a/b', ack: 'persisted' });
      said.push(await connection.get('orders', 'a/b', { minVersion: version }));
      const late = connection.get('orders', 'a/b', { minVersion: version + 1 });
      said.push(await late.catch((error) => error.reason));
      console.log(JSON.stringify(said));
      connection.close();
    """
    done = subprocess.run(
        ["node", "--experimental-websocket", "--input-type=module", "-e", program % (WEB / "sowstream.js").as_uri()],
        env={**os.environ, "GATEWAY_URL": f"http://{memory_world.gateway.address}"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert json.loads(done.stdout or "null") == [1, 2, 3, None, "not_yet"], done.stderr


def test_an_ack_of_a_socket_has_the_version(memory_world):
    """Each ack of a WebSocket but `received` has the version of the record after the command."""
    client = memory_world.connect()
    for number, ack in enumerate(("processed", "persisted", "persisted"), 1):
        assert client.ask("publish", topic="orders", data={"id": 1, "n": number}, ack=ack)["version"] == number
    assert client.ask("sow_delete", topic="orders", key="1", ack="persisted")["version"] == 4
    assert "version" not in client.ask("sow_delete", topic="orders", key="1", ack="persisted")
    client.close()


def test_the_etag_is_that_of_the_answer(memory_world):
    """A record with the same answer has the same ETag, also a weak one; an insert after a delete has another."""
    memory_world.put(1, qty=1)
    _, headers, _ = get(memory_world)
    tag = headers["etag"]
    assert (headers["cache-control"], headers["vary"]) == ("private, no-cache", "Authorization")
    for held in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        status, headers, _ = get(memory_world, **{"If-None-Match": held})
        assert (status, headers["etag"]) == (304, tag)
    memory_world.delete(1)
    assert get(memory_world, **{"If-None-Match": tag})[0] == 404
    memory_world.put(1, qty=2)
    status, headers, answer = get(memory_world, **{"If-None-Match": tag})
    assert (status, answer["data"]["qty"]) == (200, 2)
    assert headers["etag"] != tag


def test_the_etag_of_another_user_or_other_rights_is_another(guarded):
    """An ETag holds for the fields that its user sees: not for another user, nor after the rights have changed."""
    _, headers, _ = get(guarded.world, token="t-ann")
    assert get(guarded.world, token="t-ann", **{"If-None-Match": headers["etag"]})[0] == 304
    status, others, answer = get(guarded.world, token="t-bob", **{"If-None-Match": headers["etag"]})
    assert (status, "secret" in answer["data"]) == (200, False)
    narrowed = {**RIGHTS, "roles": {"desk": {"orders": {"read": True, "select": "-/secret,-/qty"}}}}
    guarded.write(guarded.rights, narrowed)
    guarded.world.gateway.call(guarded.world.gateway.gateway.entitlements.load)
    status, _, answer = get(guarded.world, token="t-bob", **{"If-None-Match": others["etag"]})
    assert (status, answer["data"]) == (200, {"id": 1, "desk": "x"})


def test_answers_that_depend_on_rights_are_not_kept(guarded):
    """No cache keeps the topics, a query or an error for another user."""
    for path in ("/v1/topics", "/v1/topics/orders/sow", "/v1/topics/orders/records/2"):
        headers = guarded.world.gateway.get(path, {"Authorization": "Bearer t-bob"})[1]
        assert (headers["cache-control"], headers["vary"]) == ("no-store", "Authorization"), path
