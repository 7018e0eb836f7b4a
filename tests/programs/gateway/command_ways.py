"""The ways to send a command to a gateway: WebSocket, HTTP, and the clients in Python and JavaScript."""

from __future__ import annotations

import http.client
import json
import queue
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from processor.client import Client
from processor.errors import SowstreamError, VersionConflict
from processor.gateway.application import WEB
from tests.gateway.memory import MemoryWorld
from tests.programs.gateway.command_cases import VERSIONS, Case

PATIENCE_S = 120
_POSTS_MAX = 16


class Answer(NamedTuple):
    """The answer to a command."""

    outcome: str
    """`done`, `refused` or `conflict`."""
    text: str
    """All of it, without the key."""


def fields_of(case: Case) -> dict[str, Any]:
    """The fields of a request."""
    command, key = case.command, case.key
    fields: dict[str, Any] = {}
    if command.op != "sow_delete":
        fields["data"] = {"id": key, **(command.data or {})}
    else:
        choices = {"key": str(key), "data": {"id": key}, "keys": [str(key)], "filter": f"/id = {key}"}
        fields[command.by] = choices[command.by]
    if command.expect is not None:
        fields["expect_version"] = VERSIONS[command.expect]
    return fields


def read(case: Case, reason: str | None, text: str, status: str) -> Answer:
    """An answer, compared without the key of its record."""
    outcome = "done" if status == "success" else {"not_entitled": "refused"}.get(reason or "", reason or "?")
    return Answer(outcome, re.sub(rf"\b{case.key}\b", "KEY", re.sub(r'"id": ?"\w*"', "", text)))


def over_websocket(world: MemoryWorld, grant: str, some: list[Case]) -> Iterator[tuple[Case, Answer]]:
    """All of a user's commands at once, over one WebSocket."""
    client = world.connect(f"t-{grant}")
    names = {client.send(one.command.op, topic="orders", ack="persisted", **fields_of(one)): one for one in some}
    client.until(lambda: names.keys() <= client.acks.keys(), PATIENCE_S)
    for name, case in names.items():
        ack = {**client.acks[name], "id": ""}
        yield case, read(case, ack.get("reason"), json.dumps(ack, sort_keys=True), ack["status"])
    client.close()


def over_http(world: MemoryWorld, grant: str, some: list[Case]) -> Iterator[tuple[Case, Answer]]:
    """A POST for each, some at the same time."""
    idle: queue.SimpleQueue[http.client.HTTPConnection] = queue.SimpleQueue()
    for _ in range(_POSTS_MAX):
        idle.put(http.client.HTTPConnection(world.gateway.address, timeout=PATIENCE_S))

    def post(case: Case) -> tuple[Case, Answer]:
        fields = fields_of(case)
        query = "&".join(f"{name}={value}" for name, value in fields.items() if name in ("key", "expect_version"))
        body = json.dumps(fields["data"]) if "data" in fields else ""
        headers = {"Authorization": f"Bearer t-{grant}", "Content-Type": "application/json"}
        connection = idle.get()
        connection.request("POST", f"/v1/topics/orders/{case.command.op}?{query}", body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        idle.put(connection)
        answer = json.loads(text)
        status = "success" if response.status == 200 else "failure"
        return case, read(case, answer.get("reason"), f"{response.status} {text}", status)

    with ThreadPoolExecutor(_POSTS_MAX) as pool:
        yield from pool.map(post, some)
    while not idle.empty():
        idle.get().close()


def over_python(world: MemoryWorld, grant: str, some: list[Case]) -> Iterator[tuple[Case, Answer]]:
    """All of a user's commands at once, through the Python client."""
    with Client("attack", gateway=f"http://{world.gateway.address}", token=f"t-{grant}") as client:
        sent = []
        for case in some:
            fields = fields_of(case)
            call = getattr(client, case.command.op)
            sent.append((case, call("orders", ack="persisted", **fields)))
        for case, future in sent:
            error = future.exception(PATIENCE_S)
            if error is None:
                yield case, read(case, None, "done", "success")
            else:
                assert isinstance(error, SowstreamError), error
                reason = "conflict" if isinstance(error, VersionConflict) else getattr(error, "reason", "not_entitled")
                version = getattr(error, "version", None)
                yield case, read(case, reason, f"{type(error).__name__} {error} {version}", "failure")


_NODE = """
import { connect } from '%s';
import { createInterface } from 'node:readline';
const answers = [];
let connection;
for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  if (asked.url) { connection = await connect(asked); continue; }
  const { op, number, fields } = asked;
  const { data, key, expect_version: expectVersion } = fields;
  const options = { key, ack: 'persisted', expectVersion };
  const sent = op === 'sow_delete' ? connection.sowDelete('orders', { ...options, data })
    : connection.publish('orders', data, { ...options, allowMerge: op === 'delta_publish' });
  answers.push(sent.then((ack) => ({ number, status: 'success', text: JSON.stringify({ ...ack, id: '' }) }),
    (error) => ({ number, status: 'failure', reason: error.reason, text: JSON.stringify(error) + error.message })));
}
for (const answer of await Promise.all(answers)) console.log(JSON.stringify(answer));
connection.close();
"""


def over_javascript(world: MemoryWorld, grant: str, some: list[Case]) -> Iterator[tuple[Case, Answer]]:
    """All of a user's commands at once, through the JavaScript client in Node."""
    lines = [{"url": f"http://{world.gateway.address}", "token": f"t-{grant}"}]
    lines += [{"op": one.command.op, "number": one.key, "fields": fields_of(one)} for one in some]
    done = subprocess.run(
        ["node", "--experimental-websocket", "--input-type=module", "-e", _NODE % (WEB / "sowstream.js").as_uri()],
        input="".join(f"{json.dumps(line)}\n" for line in lines),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    by_key = {one.key: one for one in some}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        case = by_key[answer["number"]]
        yield case, read(case, answer.get("reason"), answer["text"], answer["status"])


SEND = {"websocket": over_websocket, "http": over_http, "python": over_python, "javascript": over_javascript}


WAYS = tuple(SEND)
