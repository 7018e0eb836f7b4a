"""The tables of the gateway's protocol agree with what a gateway answers, and with the acks of workers."""

import json
import re

import pytest

from processor.gateway.access import requests
from processor.wire.ack import ACK_TYPES, Ack
from tests.docs.pages import page
from tests.gateway.memory import MemoryWorld

PAGE = page("reference/gateway.md")
NAMES = {"ack_type": "ack", "sow_key": "key"}
"""The fields of a worker's ack that have another name in an answer of the gateway."""
OF_THE_REQUEST = {"topic", "client", "sequence", "command_id"}
"""Those that the client knows by the id of its request, and does not get."""


def rows(heading):
    """The rows of the first table below a heading, as lists of cells."""
    table = re.search(r"^\|.*\n(?:\|.*\n)*", PAGE.split(f"# {heading}\n")[1], re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def names(cell):
    """The names in a cell."""
    return set(re.findall(r"`(\w+)`", cell))


@pytest.fixture
def world():
    """A gateway in memory."""
    made = MemoryWorld("orders")
    yield made
    made.close()


def answers(world):
    """One answer of each kind."""
    client = world.connect()
    order = {"topic": "orders", "data": {"id": 1, "qty": 1}}
    asked = [
        ("logon", {"client": "desk"}),
        ("ping", {}),
        ("subscribe", {"topic": "orders", "options": {"select": "-/qty"}}),
        ("subscribe", {"topic": "orders", "filter": "/qty >"}),
        ("publish", order),
        ("publish", order | {"ack": "persisted", "sequence": 1}),
        ("publish", order | {"ack": "persisted", "sequence": 1}),
        ("publish", order | {"expect_version": 9}),
        ("sow_delete", {"topic": "orders", "keys": ["1", "2"], "ack": "persisted,stats"}),
        ("sow_delete", {"topic": "orders", "key": "1", "expiration": 1}),
    ]
    for op, fields in asked:
        yield client.ask(op, **fields)
    client.close()


def test_the_fields_of_answers_are_those_of_the_page(world):
    """Each field of any answer is in the table, and each field of the table comes in one of these answers."""
    listed = set().union(*(names(row[0]) for row in rows("Fields of an answer")))
    got = list(answers(world))
    assert {name for answer in got for name in answer} == listed
    assert [one["status"] for one in got] == ["success"] * 3 + ["failure"] + ["success"] * 3 + [
        "failure",
        "success",
        "failure",
    ]
    assert [one.get("detail") for one in got[5:7]] == [None, "duplicate"]
    assert (got[7]["reason"], got[7]["version"], got[8]["records_deleted"]) == ("conflict", got[6]["version"], 1)


def test_every_field_of_an_ack_is_in_the_page():
    """Each field of a worker's ack is in the page, but for those of the request."""
    listed = set().union(*(names(row[0]) for row in rows("Fields of an answer")))
    assert {NAMES.get(name, name) for name in set(Ack._fields) - OF_THE_REQUEST} <= listed
    assert all(f"`{kind}`" in PAGE for kind in ACK_TYPES)


def test_the_fields_of_requests_are_those_of_the_page():
    """The table of requests has each op with the fields that a gateway takes, and no others."""
    listed = {op: names(fields.split(". ")[0]) for ops, fields in rows("Requests") for op in names(ops)}
    assert listed == {op: set(fields) for op, fields in requests._FIELDS.items()} | {"ping": set()}


def test_the_acks_of_a_post_have_the_fields_of_the_page(world):
    """An ack over HTTP has the fields that the page names for it."""
    listed = names(PAGE.split("lines of JSON: ")[1].split("; with")[0])
    path = "/v1/topics/orders/publish"
    acks = [json.loads(world.gateway.get(path + query, data=b'{"id": 1}')[2]) for query in ("", "?expect_version=9")]
    assert [one["status"] for one in acks] == ["success", "failure"]
    assert {name for ack in acks for name in ack} == listed
