"""Tests of repeated punctuation: a processor with more work is called again at once, and its gauges are shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

import pytest
from confluent_kafka import Producer
from prometheus_client import REGISTRY

from processor.api import Context, Input, Output, Processor, Settings
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.runtime.loop.transactions import SPACING_S
from tests.runtime.loop.turned_thread import TurnedThread, mock_kafka
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message
    from pydantic import BaseModel

    from processor.record import Record

_PIECES = 1_000
_INPUT = 10_000
_IDLE_S = 0.02
"""Idle time of a thread between two punctuations without work."""


class Pieces(Settings):
    """The number of pieces of work."""

    pieces: int = _PIECES
    """How many punctuations it takes."""
    is_silent: bool = False
    """Whether punctuations return None."""


class Piecemeal(Processor):
    """Forwards one record at each punctuation until its work is done."""

    settings_type: ClassVar[type[BaseModel]] = Pieces
    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"),)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with all pieces."""
        assert isinstance(settings, Pieces)
        self._context, self._left, self._is_silent = context, settings.pieces, settings.is_silent
        self.came: list[int] = []

    def process(self, records: Sequence[Record]) -> None:
        """Note the size of the batch."""
        self.came.append(len(records))

    def punctuate(self, now_ms: int) -> bool | None:
        """Do a piece."""
        if self._left:
            self._left -= 1
            self._context.gauge("left", self._left)
            self._context.forward("sow", b"k", b"%d" % self._left, [("version", b"1")])
        return None if self._is_silent else self._left > 0


@pytest.fixture
def kafka() -> Iterator[dict[str, str]]:
    """Create a broker within this process."""
    with mock_kafka() as properties:
        yield properties


def test_a_processor_with_more_to_do_is_not_kept_waiting_for_input(
    kafka: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand pieces wait for far less time than a thousand idle polls, with fewer commits."""
    turned = TurnedThread(kafka, Piecemeal, Pieces())
    waits_s: list[float] = []
    poll = turned.thread._consumer.poll

    def noted(most: int, wait_s: float) -> list[Message]:
        waits_s.append(wait_s)
        return poll(most, wait_s)

    monkeypatch.setattr(turned.thread._consumer, "poll", noted)
    seconds = turned.turn(_PIECES)
    assert turned.task.processor._left == 0  # type: ignore[attr-defined]
    assert len(waits_s) >= _PIECES
    assert sum(waits_s) < _PIECES * _IDLE_S / 2
    assert turned.commits <= seconds / SPACING_S + 1
    turned.close()


def test_while_there_is_more_to_do_little_is_read_between_two_pieces(kafka: dict[str, str]) -> None:
    """Otherwise the records read meanwhile would delay the pieces, and become due together."""
    turned = TurnedThread(kafka, Piecemeal, Pieces(pieces=10_000_000))
    turned.turn(1)
    owner = Producer(kafka)
    for number in range(_INPUT - 1):
        owner.produce("orders.publish", b"{}", b"%d" % number, 0)
    assert owner.flush(60) == 0
    turned.thread._consumer.begin(0, 0)
    came = turned.task.processor.came  # type: ignore[attr-defined]
    until(lambda: turned.turn(1) and sum(came) >= _INPUT, lambda: sum(came), pause_s=0)
    assert turned.task.processor._left > 0  # type: ignore[attr-defined]
    assert max(came) == 200
    turned.close()


@pytest.mark.parametrize(
    ("pieces", "turn_s"),
    [(Pieces(pieces=0), _IDLE_S), (Pieces(is_silent=True), SPACING_S / 2)],
    ids=["nothing to do", "says nothing"],
)
def test_a_processor_without_more_work_waits_for_input(kafka: dict[str, str], pieces: Pieces, turn_s: float) -> None:
    """An idle worker sleeps: punctuation without more work is called once a turn, twice between commits."""
    turned = TurnedThread(kafka, Piecemeal, pieces)
    assert turned.turn(20) >= 20 * turn_s * 0.9
    turned.close()


def test_records_that_come_while_kafka_ends_a_transaction_are_one_batch(
    kafka: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that began meanwhile would be put off for longer; other work does not wait for that."""
    turned = TurnedThread(kafka, Piecemeal, Pieces(pieces=0))
    waits_s: list[float] = []
    monkeypatch.setattr(TransactionalProducer, "settling_s", 0.125)
    monkeypatch.setattr(turned.thread._consumer, "poll", lambda _most, wait_s: waits_s.append(wait_s) or [object()])
    turned.thread._poll()
    turned.thread._has_more = True
    turned.thread._poll()
    assert waits_s == [0.125, 0.0]
    turned.close()


def test_a_turn_without_a_commit_does_not_delay_punctuation_output(kafka: dict[str, str]) -> None:
    """Only after a commit the next one waits for the spacing."""
    turned = TurnedThread(kafka, Piecemeal, Pieces(pieces=0))
    policy, now_s = turned.thread._policy, time.monotonic()
    policy.worked(now_s, 0, 1)
    turned.thread._commit()
    policy.worked(now_s, 0, 1, is_urgent=True)
    assert policy.rest_s(now_s) == 0
    turned.close()


def test_output_of_every_turn_is_committed_once_per_spacing(
    kafka: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small outputs of punctuation within the spacing of commits are committed together."""
    monkeypatch.setattr("processor.runtime.loop.stream_thread._IDLE_POLL_S", 0.001)
    turned = TurnedThread(kafka, Piecemeal, Pieces(is_silent=True))
    seconds = turned.turn(200)
    assert 2 <= turned.commits <= seconds / SPACING_S + 1
    turned.close()


def test_a_gauge_is_shown_within_a_second_and_until_its_partition_leaves(kafka: dict[str, str]) -> None:
    """A gauge is shown also while nothing is committed."""
    turned = TurnedThread(kafka, Piecemeal, Pieces(pieces=1))
    labels = {"processor": "orders", "partition": "0", "gauge": "left"}
    seconds = 0.0
    while seconds < 1:
        seconds += turned.turn(1)
    assert REGISTRY.get_sample_value("sowstream_gauge", labels) == 0
    turned.thread.on_revoked([0])
    assert REGISTRY.get_sample_value("sowstream_gauge", labels) is None
    turned.close()
