import random
import time
import uuid
from datetime import UTC, datetime

import pytest

from processor.client import Client, Message, Subscription
from processor.client.feeds.bookmark import BookmarkTracker, token
from processor.errors import ConfigurationError, PositionLost
from processor.record import Record
from processor.subscriptions import Message as Told
from tests.client.family import PARTITIONS, Family
from tests.waiting import PATIENCE_S

FILTER = "/n > 0 OR /id = 'end'"


def numbers(messages: list[Message]) -> list[tuple[str | None, int]]:
    """The update numbers of each record."""
    return [(message.sow_key, message.data["n"]) for message in messages]


def replayed(family: Family, subscription: Subscription) -> list[Message]:
    """All messages of a replay about the records written so far, up to marks of this call."""
    mark = uuid.uuid4().hex
    with family.transaction():
        for partition in range(PARTITIONS):
            value = f'{{"id":"end","mark":"{mark}"}}'.encode()
            family._producer.produce(f"{family.name}.sow", value, b"end%d" % partition, partition)
    subscription.timeout_s = PATIENCE_S
    delivered, ends = [], 0
    for message in subscription:
        if message.data["id"] != "end":
            delivered.append(message)
        ends += message.data.get("mark") == mark
        if ends == PARTITIONS:
            break
    assert ends == PARTITIONS
    subscription.close()
    return delivered


def write(family: Family, numbers: range) -> list[tuple[str, int]]:
    """Write updates of three keys in turn."""
    written = []
    for number in numbers:
        key = "abc"[number % 3]
        family.sow(key, {"id": key, "n": number}, number)
        written.append((key, number))
    return written


@pytest.mark.broker
def test_epoch_and_now(client: Client, family: Family):
    """A replay from `epoch` begins with the oldest record kept, from `now` with the next one; also as an argument."""
    before = write(family, range(1, 7))
    now = client.subscribe(family.name, options="bookmark=now")
    epoch = client.subscribe(family.name, bookmark="epoch")
    after = write(family, range(7, 10))
    assert sorted(numbers(replayed(family, now))) == sorted(after)
    got = numbers(replayed(family, epoch))[: len(before + after)]
    assert {key: [n for k, n in got if k == key] for key in "abc"} == {
        key: [n for k, n in before + after if k == key] for key in "abc"
    }


@pytest.mark.broker
def test_a_time(client: Client, family: Family):
    """A replay from an ISO time begins with the first records of that time or later, in any time zone."""
    write(family, range(1, 4))
    time.sleep(0.05)
    between = datetime.now(UTC).isoformat()
    time.sleep(0.05)
    after = write(family, range(4, 8))
    assert sorted(numbers(replayed(family, client.subscribe(family.name, bookmark=between)))) == sorted(after)
    before_all = client.subscribe(family.name, bookmark="1969-12-31T23:59:59.999Z")  # -1 means the end to Kafka.
    assert len(numbers(replayed(family, before_all))) >= len(after)
    future = client.subscribe(family.name, bookmark="2999-01-01T00:00:00Z")
    later = write(family, range(8, 9))
    assert numbers(replayed(family, future)) == later


@pytest.mark.broker
@pytest.mark.parametrize("options", [None, "oof", "conflation=100ms"])
def test_a_replay_from_any_bookmark_misses_nothing(client: Client, family: Family, options: str | None):
    """A replay from any message's bookmark delivers all later messages, and without conflation nothing else."""
    written = write(family, range(1, 13))
    delivered = replayed(family, client.subscribe(family.name, FILTER, options, bookmark="epoch"))
    assert dict(numbers(delivered)) == dict(written)
    for place in range(0, len(delivered), 3):
        again = replayed(family, client.subscribe(family.name, FILTER, options, bookmark=delivered[place].bookmark))
        got = numbers(again)
        rest = numbers(delivered[place + 1 :])
        if options == "conflation=100ms":
            assert dict(rest).items() <= dict(got).items()
        else:
            assert sorted(got) == sorted(rest)


@pytest.mark.broker
def test_only_a_replay_has_bookmarks(client: Client, family: Family):
    """Messages of a subscription without a replay have no bookmark."""
    subscription = client.subscribe(family.name)
    write(family, range(1, 2))
    assert [message.bookmark for message in replayed(family, subscription)] == [None]


@pytest.mark.broker
def test_a_replay_sends_oof_for_its_own_records_only(client: Client, family: Family):
    """A replay starts without any state: it sends `oof` only for records that it has delivered before."""
    family.sow("a", {"id": "a", "n": 1})
    family.sow("b", {"id": "b", "n": 1})
    first = next(m for m in client.subscribe(family.name, bookmark="epoch", timeout_s=PATIENCE_S) if m.sow_key == "a")
    family.sow("a", {"id": "a", "n": -1}, 2)
    family.sow("b", None, 2, kind="delete")
    whole = replayed(family, client.subscribe(family.name, FILTER, "oof", bookmark="epoch"))
    assert sorted((m.command, m.sow_key, m.reason) for m in whole) == [
        ("oof", "a", "match"),
        ("oof", "b", "deleted"),
        ("publish", "a", None),
        ("publish", "b", None),
    ]
    part = replayed(family, client.subscribe(family.name, FILTER, "oof", bookmark=first.bookmark))
    assert ("oof", "a") not in {(m.command, m.sow_key) for m in part}


@pytest.mark.broker
def test_invalid_bookmarks_are_rejected(client: Client, family: Family):
    """Nonsense, a bookmark of another topic, partitions or offsets, and deltas or snapshots are rejected at once."""
    family.sow("a", {"id": "a"})
    topic_id = family.admin.topic_id(f"{family.name}.sow")
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for wrong, said in (
        ("yesterday", "epoch, now, a time such as"),
        (token("A" * 22, ends), "of another topic"),
        (token(topic_id, {0: 0}), f"has 1 partitions, .* has {PARTITIONS}"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            client.subscribe(family.name, bookmark=wrong)
    with pytest.raises(PositionLost, match="the topic ends at"):
        client.subscribe(family.name, bookmark=token(topic_id, ends | {1: 1000}))
    for form in (client.delta_subscribe, client.sow_and_delta_subscribe, client.sow_and_subscribe):
        with pytest.raises(ConfigurationError, match="bookmark"):
            form(family.name, bookmark="epoch")


def message(number: int) -> Told:
    """A message as the engine returns it."""
    return Told("publish", "orders", str(number))


def test_a_bookmark_never_passes_a_held_update():
    """A bookmark stays before updates that are held back, and before later ones of the same turn."""
    replay = BookmarkTracker("I" * 22, {0: 5, 1: 0})
    replay.advance(0, [Record(b"k", b"", None, 5, 0)], 1000)
    replay.advance(0, [Record(b"k", b"", None, 6, 0)], 1100)
    replay.advance(1, [Record(b"k", b"", None, 0, 0)], 1200)

    def marks(count: int, *, is_last: bool, held_since_ms: int | None) -> list[str]:
        marked = replay.marked([message(n) for n in range(count)], is_last=is_last, held_since_ms=held_since_ms)
        return [(each.bookmark or "").partition(":")[2] for each in marked]

    assert marks(1, is_last=False, held_since_ms=None) == ["5.0"]
    assert marks(1, is_last=True, held_since_ms=1000) == ["5.0"]
    assert marks(2, is_last=True, held_since_ms=1100) == ["5.0", "6.0"]
    assert marks(1, is_last=True, held_since_ms=1200) == ["7.0"]
    assert marks(2, is_last=True, held_since_ms=None) == ["7.0", "7.1"]


def test_a_reader_that_never_comes_to_the_end(random_seed):
    """Few positions are kept however long it reads, and the bookmark still never passes a held update."""
    replay = BookmarkTracker("I" * 22, {0: 0})
    for number in range(50_000):
        replay.advance(0, [Record(b"k", b"", None, number, 0)], number)
        [marked] = replay.marked([message(number)], is_last=False, held_since_ms=None)
        assert marked.bookmark == f"{'I' * 22}:0"
    assert len(replay._before) <= 1_000
    choice, reached = random.Random(random_seed), -1
    for held_since_ms in sorted(choice.sample(range(50_000), 300)):
        [marked] = replay.marked([message(0)], is_last=True, held_since_ms=held_since_ms)
        reached = int((marked.bookmark or "").partition(":")[2])
        assert reached <= held_since_ms
    assert reached > 0
    [marked] = replay.marked([message(0)], is_last=True, held_since_ms=None)
    assert marked.bookmark == f"{'I' * 22}:50000"
