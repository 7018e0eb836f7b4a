"""A subscriber to deltas, some of which were lost on a real broker, still ends with the state of the world."""

from __future__ import annotations

import itertools
import random
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.kafka.partitioner import partition_for
from processor.merge import apply_delta
from processor.testing import ProcessorTestDriver
from tests.client.family import PARTITIONS, Family
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from processor.client import Client, Message, Subscription
    from processor.record import Record

pytestmark = pytest.mark.broker

State: TypeAlias = "dict[str, tuple[int | None, Any]]"
"""Version and record of each key."""

KEYS = [f"k{number}" for number in range(12)]


class Leak:
    """Writes a worker's output to a topic family; some records never reach the delta topic."""

    def __init__(self, family: Family, seed: int) -> None:
        self._family = family
        self._driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name=family.name)
        self._random = random.Random(seed)
        self.lost = 0

    def publish(self, *commands: tuple[str, Any, dict[str, str]], loses: float) -> None:
        """Merge commands, and write the worker's output in one transaction."""
        self._driver.pipe_batch(commands)
        sow, deltas = self._driver.pending_output("sow"), self._driver.pending_output("delta")
        self._driver.commit()
        with self._family.transaction():
            for record in sow:
                self._write("sow", record)
            for record in deltas:
                is_update = all(name != "kind" for name, _ in record.headers or ())
                if is_update and self._random.random() < loses:
                    self.lost += 1
                else:
                    self._write("delta", record)

    def update(self, keys: list[str], loses: float) -> None:
        """Apply random deltas, full publishes and deletes to some keys."""
        commands: list[tuple[str, Any, dict[str, str]]] = []
        for key in keys:
            body = {"id": key, self._random.choice("abc"): self._random.randrange(100)}
            kind = self._random.random()
            command = "publish" if kind < 0.2 else "delta_publish"
            commands.append((key, None if kind > 0.95 else body, {"command": command} if kind <= 0.95 else {}))
        self.publish(*commands, loses=loses)

    def choose(self) -> list[str]:
        """Some keys, some of them more than once."""
        return self._random.choices(KEYS, k=5)

    def _write(self, role: str, record: Record) -> None:
        assert record.key is not None
        self._family._producer.produce(
            f"{self._family.name}.{role}",
            record.value,
            record.key,
            partition_for(record.key, PARTITIONS),
            headers=record.headers,  # type: ignore[arg-type]
        )


def held(messages: list[Message]) -> State:
    """The state of a subscriber who applies messages; each delta must apply to the version before it."""
    records: State = {}
    for message in messages:
        key, version = str(message.sow_key), message.version
        if message.delta:
            assert version is not None
            before, record = records[key]
            assert before == version - 1
            records[key] = version, apply_delta(record, message.data, message.removed)
        else:
            records[key] = version, message.data
    return records


def read(subscription: Subscription, messages: list[Message], state: State) -> None:
    """Read until the state is reached, or until the test's timeout."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s and not (state and held(messages) == state):
        if (message := subscription.next_within(0.1)) is not None:
            messages.append(message)


@pytest.mark.parametrize("seed", range(3))
def test_lost_deltas_are_healed(client: Client, family: Family, seed: int) -> None:
    """A live reader and a late one both end with the SOW records, and the gaps were counted."""
    leak = Leak(family, seed)
    late, live = client.delta_subscribe(family.name), client.delta_subscribe(family.name)
    messages_late: list[Message] = []
    messages_live: list[Message] = []
    state: State = {}
    reading = threading.Thread(target=read, args=(live, messages_live, state))
    reading.start()
    leak.update(KEYS, loses=0)
    for _ in range(60):
        leak.update(leak.choose(), loses=0.2)
    leak.publish(*((key, {"id": key, "z": 1}, {}) for key in KEYS), loses=0)
    state.update(held([message for message in client.sow(family.name) if message.command == "sow"]))
    assert sorted(state) == sorted(KEYS)
    read(late, messages_late, state)
    reading.join()

    assert leak.lost > 20
    for subscription, messages in ((late, messages_late), (live, messages_live)):
        assert held(messages) == state
        assert subscription.healed > 0
        assert subscription.unchecked == 0


def test_a_record_that_did_not_change_lately_is_found(client: Client, family: Family) -> None:
    """A delta written long after its record is healed: if necessary, the SOW topic is read from its beginning."""
    partition = partition_for(b"a", PARTITIONS)
    with family.transaction():
        family._producer.produce(
            f"{family.name}.sow",
            b'{"id":"a","n":9}',
            b"a",
            partition,
            timestamp=1_000_000_000,
            headers=[("version", b"9")],
        )
    subscription = client.delta_subscribe(family.name)
    family.delta("a", {"id": "a", "n": 1}, 1, kind="insert")
    family.delta("a", {"id": "a", "n": 9}, 9)
    # A record that is read again comes after all that was fetched with its delta, end marks among it.
    messages = [message for _ in range(2) if (message := subscription.next_within(PATIENCE_S)) is not None]
    messages += family.rest(subscription)
    assert [(message.version, message.delta, message.data["n"]) for message in messages] == [
        (1, False, 1),
        (9, False, 9),
    ]
    assert subscription.healed == 1


def test_a_view_from_which_deltas_are_withheld_reads_its_topic_again(
    client: Client, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every third delta withheld from a view, it still ends with the SOW records."""
    leak = Leak(family, 7)
    leak.update(KEYS, loses=0)
    with client.view(family.name) as view:
        feed = view._subscription._feed
        fetch, deltas = feed.fetch, itertools.count()

        def lossy(wait_s: float) -> list[Message]:
            return [message for message in fetch(wait_s) if not message.delta or next(deltas) % 3]

        monkeypatch.setattr(feed, "fetch", lossy)
        for _ in range(20):
            leak.update(leak.choose(), loses=0)
            view.refresh()
        monkeypatch.setattr(feed, "fetch", fetch)
        leak.publish(*((key, {"id": key, "z": 1}, {}) for key in KEYS), loses=0)
        state = {message.sow_key: message.data for message in client.sow(family.name) if message.command == "sow"}
        until_s = time.monotonic() + PATIENCE_S
        while dict(view) != state and time.monotonic() < until_s:
            view.refresh(0.1)
        assert dict(view) == state
        assert view.healed > 0
