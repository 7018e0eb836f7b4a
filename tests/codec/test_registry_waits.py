"""A worker's thread waits for the schema registry only briefly; the request goes on in the background."""

import contextlib
import json
import socket
import threading
import time

import pytest

from processor.codec import CodecOptions
from processor.codec.avro import AvroCodec
from processor.codec.schema_registry import http_client, schemas
from processor.codec.schema_registry.http_client import Asking
from processor.codec.schema_registry.schemas import Registry
from processor.errors import PartitionHeld, RecordRejected, Stop
from tests.codec.avro_world import plain, record
from tests.codec.test_schemas import answering
from tests.waiting import PATIENCE_S

ORDER = record(("id", "long"))
TEXT = json.dumps(ORDER)
WAIT_S = 0.1


@contextlib.contextmanager
def silent():
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


class Gate:
    """A request function that answers when the test opens the gate."""

    def __init__(self):
        self.asked = []
        self.answer = threading.Event()
        self.error = None

    def __call__(self, question):
        """Answer, or fail, once the gate is open."""
        self.asked.append(question)
        assert self.answer.wait(120)
        if self.error is not None:
            raise self.error


def test_a_silent_registry_holds_the_partition_and_takes_no_longer_than_it_may(monkeypatch):
    """A silent registry holds the partition after the wait each time, with its address and the remedy."""
    monkeypatch.setattr(http_client, "REQUEST_TIMEOUT_S", 2 * PATIENCE_S)
    monkeypatch.setattr(schemas, "ANSWER_TIMEOUT_S", 0.0)  # The first request lasts until the server is gone.
    begin_s = time.monotonic()
    with silent() as url:
        registry = Registry({"url": url}, WAIT_S)
        for _ in range(3):
            with pytest.raises(PartitionHeld, match=rf"schema 7.*{url} .*nothing is lost") as caught:
                registry.schema(7)
            assert caught.value.reason == "registry"
    assert time.monotonic() - begin_s < PATIENCE_S
    assert registry._asking.wait(7, PATIENCE_S)


def test_the_answer_that_came_later_serves_the_next_try(monkeypatch):
    """An answer that arrives after the wait serves the next attempt without another request."""
    answer = threading.Event()
    with answering((200, {"schema": TEXT})) as (url, asked):
        registry = Registry({"url": url}, WAIT_S)
        get_schema = registry._client.get_schema

        def late(*arguments, **options):
            assert answer.wait(120)
            return get_schema(*arguments, **options)

        monkeypatch.setattr(registry._client, "get_schema", late)
        with pytest.raises(PartitionHeld, match="has not answered yet"):
            registry.schema(7)
        assert asked == []
        answer.set()
        assert registry._asking.wait(7, 30)
        assert json.loads(registry.schema(7).text) == ORDER
    assert len(asked) == 1


def test_a_record_whose_schema_is_slow_to_come_is_read_by_a_later_try():
    """A record with a slow schema is held at first and read later; a record with a cached schema is not held."""
    answers = threading.Event()
    with slow(lambda: answers.wait(PATIENCE_S)) as url:
        codec = AvroCodec(CodecOptions(topic="orders", registry={"url": url}, registry_wait_s=PATIENCE_S))
        own = codec.encode({"id": 6})
        codec._registry._wait_s = WAIT_S
        message = b"\0" + (7).to_bytes(4) + plain(ORDER, {"id": 5})
        with pytest.raises(PartitionHeld):
            codec.decode(message)
        assert codec.decode_own(own) == codec.decode_own(codec.encode({"id": 6})) == {"id": 6}
        answers.set()
        assert codec._registry._asking.wait(7, PATIENCE_S)
        assert codec.decode(message) == {"id": 5}


def test_a_client_waits_for_its_answer():
    """Without a limit of its own, a call waits until the registry has answered."""
    with slow(lambda: time.sleep(1.0)) as url:
        codec = AvroCodec(CodecOptions(topic="orders", registry={"url": url}))
        assert codec.decode(b"\0" + (7).to_bytes(4) + plain(ORDER, {"id": 5})) == {"id": 5}


def test_a_refusal_holds_the_partition_with_the_registrys_words():
    """A refusal holds the partition at once with the registry's words, not as a missing answer."""
    with answering((401, {"error_code": 40101, "message": "no"})) as (url, _):
        registry = Registry({"url": url}, 30.0)
        with pytest.raises(PartitionHeld, match=r"refuses us \(HTTP 401\)"):
            registry.schema(7)


def test_a_schema_that_is_missing_or_of_another_kind_rejects_the_record():
    """A missing schema, or one of another kind, rejects the record: an answer holds no partition."""
    with answering((404, {"error_code": 40403, "message": "not found"})) as (url, _):
        registry = Registry({"url": url}, 30.0)
        with pytest.raises(RecordRejected, match="schema_not_found"):
            registry.schema(7)
    with answering((200, {"schema": "{}", "schemaType": "JSON"})) as (url, asked):
        registry = Registry({"url": url}, 30.0)
        for _ in range(2):
            with pytest.raises(RecordRejected, match="schema_mismatch"):
                registry.schema(7)
        assert len(asked) == 1


@pytest.mark.parametrize("status", [400, 405, 422])
@pytest.mark.parametrize("wait_s", [30.0, None])
def test_an_id_that_the_registry_refuses_rejects_the_record(status, wait_s):
    """A registry that refuses the request for one id rejects the record of it, with its words, and holds nothing."""
    with answering((status, {"error_code": status, "message": "no id"})) as (url, asked):
        registry = Registry({"url": url}, wait_s)
        for _ in range(2):
            with pytest.raises(RecordRejected, match=rf"schema_not_found: .*HTTP {status}\): no id$"):
                registry.schema("00000000-0000-0000-0000-000000000001")
        assert len(asked) == 1


@pytest.mark.parametrize("status", [400, 421, 451])
def test_the_answer_of_a_proxy_holds_the_partition(status):
    """An answer without a registry's `error_code` is no statement about one schema: no record is rejected for it."""
    answer = status, {"html": "No required SSL certificate was sent"}
    with answering(answer) as (url, _), pytest.raises(PartitionHeld, match=f"HTTP {status}"):
        Registry({"url": url}, 30.0).schema(7)


def test_requests_are_made_one_at_a_time_and_the_thread_ends():
    """Two waits for one answer cause one request, and the thread ends when no request is left."""
    gate = Gate()
    asking = Asking(gate)
    assert not asking.wait("a", 0.01)
    assert not asking.wait("a", 0.01)
    assert not asking.wait("b", 0.01)
    gate.answer.set()
    assert asking.wait("b", 30)
    assert gate.asked == ["a", "b"]
    for thread in threading.enumerate():
        if thread.name == "schema registry":
            thread.join(30)
            assert not thread.is_alive()


def test_a_failed_request_keeps_its_problem_until_an_answer():
    """The problem of a failed request is kept for the next attempt and removed by an answer."""
    gate = Gate()
    gate.answer.set()
    gate.error = Stop("nobody there")
    asking = Asking(gate)
    assert asking.wait("a", 30)
    assert asking.problem("a") == "nobody there"
    gate.error = ValueError("no")
    assert asking.wait("a", 30)
    assert asking.problem("a") == "ValueError: no"
    gate.error = None
    assert asking.wait("a", 30)
    assert asking.problem("a") == ""


@contextlib.contextmanager
def slow(wait):
    """The address of a registry that registers at once and is slow to return a schema by id."""
    registered = {"subject": "x", "version": 1, "id": 1, "schema": TEXT}
    with answering((200, registered), before=lambda path: wait() if "/schemas/ids/" in path else None) as (
        url,
        _,
    ):
        yield url
