"""Who has more to do than one punctuation takes is called again at once, and what it says of itself is shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

import pytest
from confluent_kafka import Producer
from prometheus_client import REGISTRY

from processor.api import Context, Input, Output, Processor, Settings
from processor.runtime.commit_policy import SPACING_S
from tests.runtime.turned_thread import TurnedThread, mock_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel

    from processor.record import Record

_PIECES = 1_000
_INPUT = 10_000
_IDLE_S = 0.02
"""What a thread waits for input between two punctuations of a processor that has nothing to do."""


class Pieces(Settings):
    """How much there is to do."""

    pieces: int = _PIECES
    """How many punctuations it takes."""
    is_silent: bool = False
    """Whether it does not say that there is more."""


class Piecemeal(Processor):
    """Forwards one record at each punctuation, until all is done."""

    settings_type: ClassVar[type[BaseModel]] = Pieces
    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"),)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with all of it to do."""
        assert isinstance(settings, Pieces)
        self._context, self._left, self._is_silent = context, settings.pieces, settings.is_silent
        self.came: list[int] = []

    def process(self, records: Sequence[Record]) -> None:
        """Note how many came at once."""
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
    """A broker within this process."""
    with mock_kafka() as properties:
        yield properties


def test_a_processor_with_more_to_do_is_not_kept_waiting_for_input(kafka: dict[str, str]) -> None:
    """A thousand pieces take far less than as many idle polls, and not a commit each."""
    turned = TurnedThread(kafka, Piecemeal, Pieces())
    seconds = turned.turn(_PIECES)
    assert turned.task.host.processor._left == 0  # type: ignore[attr-defined]
    assert seconds < _PIECES * _IDLE_S / 2
    assert turned.commits <= seconds / SPACING_S + 1
    turned.close()


def test_while_there_is_more_to_do_little_is_read_between_two_pieces(kafka: dict[str, str]) -> None:
    """Else what came meanwhile would all be due together later, and what is forwarded would wait for it."""
    turned = TurnedThread(kafka, Piecemeal, Pieces(pieces=100_000))
    turned.turn(1)
    owner = Producer(kafka)
    for number in range(_INPUT - 1):
        owner.produce("orders.publish", b"{}", b"%d" % number, 0)
    assert owner.flush(10) == 0
    turned.thread._consumer.begin(0, 0)
    came = turned.task.host.processor.came  # type: ignore[attr-defined]
    deadline_s = time.monotonic() + 20
    while sum(came) < _INPUT:
        assert time.monotonic() < deadline_s, "the input did not come"
        turned.turn(1)
    assert turned.task.host.processor._left > 0  # type: ignore[attr-defined]
    assert max(came) == 200
    turned.close()


@pytest.mark.parametrize(
    ("pieces", "turn_s"),
    [(Pieces(pieces=0), _IDLE_S), (Pieces(is_silent=True), SPACING_S / 2)],
    ids=["nothing to do", "says nothing"],
)
def test_one_that_does_not_ask_for_it_waits_for_input(kafka: dict[str, str], pieces: Pieces, turn_s: float) -> None:
    """An idle worker sleeps: plug-ins that return nothing are called as ever, or twice between two commits."""
    turned = TurnedThread(kafka, Piecemeal, pieces)
    assert turned.turn(20) >= 20 * turn_s * 0.9
    turned.close()


def test_a_turn_without_anything_to_commit_does_not_put_off_what_the_clock_asks_for(kafka: dict[str, str]) -> None:
    """Only where a transaction was committed is there a reason to wait for the next."""
    turned = TurnedThread(kafka, Piecemeal, Pieces(pieces=0))
    policy, now_s = turned.thread._policy, time.monotonic()
    policy.worked(now_s, 0, 1)
    turned.thread._commit()
    policy.worked(now_s, 0, 1, is_urgent=True)
    assert policy.rest_s(now_s) == 0
    turned.close()


def test_what_is_forwarded_at_every_turn_has_no_commit_at_every_turn(
    kafka: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drop by drop, as the clock asks for it: the drops of a commit's spacing are committed together."""
    monkeypatch.setattr("processor.runtime.stream_thread._IDLE_POLL_S", 0.001)
    turned = TurnedThread(kafka, Piecemeal, Pieces(is_silent=True))
    seconds = turned.turn(200)
    assert 2 <= turned.commits <= seconds / SPACING_S + 1
    turned.close()


def test_a_gauge_is_shown_within_a_second_and_until_its_partition_leaves(kafka: dict[str, str]) -> None:
    """Also while nothing is committed: what waits is to be seen when nothing moves."""
    turned = TurnedThread(kafka, Piecemeal, Pieces(pieces=1))
    labels = {"processor": "orders", "partition": "0", "gauge": "left"}
    seconds = 0.0
    while seconds < 1:
        seconds += turned.turn(1)
    assert REGISTRY.get_sample_value("sowstream_gauge", labels) == 0
    turned.thread.on_revoked([0])
    assert REGISTRY.get_sample_value("sowstream_gauge", labels) is None
    turned.close()
