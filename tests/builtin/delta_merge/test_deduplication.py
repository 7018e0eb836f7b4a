"""Deduplication: a command that is sent twice is merged once."""

import random

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.kafka.partitioner import partition_for
from processor.testing import ProcessorTestDriver
from processor.wire.partition_marks import LIVES_NAME
from processor.wire.publisher_mark import RANGES_MAX
from tests.builtin.installed import install
from tests.builtin.merging import acks, bodies, merging, rejected, told


def numbered(sequence, body=None, client="desk", **headers):
    """A record of a client with its number."""
    return "7", body or {"n": int(sequence)}, {"client": client, "sequence": str(sequence), **headers}


def taken(driver):
    """The field `n` of every delta of the open transaction."""
    return [body["n"] for body in bodies(driver.pending_output("delta"))]


def test_a_number_not_above_the_highest_taken_is_a_duplicate():
    """It is skipped and counted; gaps do not matter, and 0 is a number."""
    driver = merging()
    driver.pipe_batch([numbered(n) for n in (0, 0, 5, 3, 5, 6, 1)])
    assert taken(driver) == [0, 5, 6]
    driver.commit()
    assert driver.events == {"duplicate": 4}
    assert driver.committed_offset == 7


def test_client_and_sequence_travel_as_they_were_sent():
    """The headers `client` and `sequence` go onto SOW and delta unchanged."""
    driver = merging()
    driver.pipe_batch([numbered("007", {"n": 1}), ("7", None, {"client": "desk", "sequence": "8"})])
    for role in ("sow", "delta"):
        assert [record.headers[-2:] for record in driver.pending_output(role)] == [
            [("client", b"desk"), ("sequence", b"007")],
            [("client", b"desk"), ("sequence", b"8")],
        ]


def test_every_client_counts_for_itself():
    """The numbers of a client are compared with its own only, and records without a sequence with none."""
    driver = merging()
    driver.pipe_batch(
        [numbered(9), numbered(1, client="other"), ("7", {"n": 2}, {"client": "desk"}), ("7", {"n": 3}, None)]
    )
    assert taken(driver) == [9, 1, 2, 3]


def test_a_repeat_is_dropped_in_a_later_batch():
    """A repeat is recognised in later batches as within one."""
    driver = merging()
    for n in (2, 1, 2, 3):
        driver.pipe_input(*numbered(n))
        driver.commit()
    assert driver.events == {"duplicate": 2}


@pytest.mark.parametrize("keep_store", [True, False])
def test_the_marks_survive_a_crash_with_and_without_the_disk(keep_store):
    """After a crash, as after a move to another worker, the marks are read back from their topic."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(2)])
    driver.commit()
    driver.crash(keep_store=keep_store)
    driver.pipe_batch([numbered(2), numbered(3)])
    driver.commit()
    assert bodies(driver.read_output("sow")) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert driver.events == {"duplicate": 1}


def test_marks_that_were_not_committed_do_not_count():
    """A record of a rolled back transaction is no duplicate of itself."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(2)])
    driver.abort()
    driver.commit()
    assert bodies(driver.read_output("sow")) == [{"n": 1}, {"n": 2}]
    assert driver.events == {}


def test_a_rejected_record_does_not_raise_the_mark():
    """A rejected record was not taken: its publisher may correct it and send it again under its number."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(2, b"{"), numbered(2)])
    assert taken(driver) == [1, 2]


def test_a_delete_is_taken_too_also_one_of_nothing():
    """A delete raises the highest number of its client, also one of no record."""
    driver = merging()
    driver.pipe_batch([("8", None, {"client": "desk", "sequence": "4"}), numbered(4)])
    driver.commit()
    assert driver.events == {"delete_of_nothing": 1, "duplicate": 1}


def test_a_dead_letter_sent_again_is_not_held_against_the_marks():
    """Its number is far behind the mark, is taken all the same, and lowers nothing for later records."""
    driver = merging()
    driver.pipe_batch([numbered(5), numbered(2, replay_of="orders.publish/0/9"), numbered(4), numbered(6)])
    assert taken(driver) == [5, 2, 6]
    assert "replay_of" not in told(driver.pending_output("sow")[1])


def test_a_dead_letter_sent_again_that_is_ahead_raises_the_mark():
    """A dead letter that is sent again with a higher number raises the mark."""
    driver = merging()
    driver.pipe_batch([numbered(5, replay_of="orders.publish/0/9"), numbered(5)])
    assert taken(driver) == [5]


def test_records_without_kafka_key_are_not_taken_for_late_when_others_overtake_them():
    """They come by way of other partitions, and are compared with numbers from the same partition."""
    driver = merging()
    driver.pipe_input("7", {"n": 2}, {"client": "desk", "sequence": "2"})
    driver.pipe_input(None, {"id": 7, "n": 1}, {"client": "desk", "sequence": "1"})
    driver.pipe_input(None, {"id": 7, "n": 1}, {"client": "desk", "sequence": "1"})
    driver.commit()
    assert told(driver.read_output("publish")[0])["source"] == "orders.publish/0/1"
    driver.commit()
    assert [body["n"] for body in bodies(driver.read_output("sow"))] == [2, 1]
    assert driver.events == {"rekeyed": 2, "duplicate": 1}
    assert "source" not in told(driver.read_output("sow")[1])


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "+1", " 1", "٣", str(2**63), "9" * 30])
def test_a_number_that_is_none_is_rejected(text):
    """A sequence that is not of 63 bits, not negative and of digits only is rejected."""
    driver = merging()
    driver.pipe_input("7", {"id": 7}, {"client": "desk", "sequence": text})
    assert [reason for reason, _ in rejected(driver)] == ["bad_header"]


@pytest.mark.parametrize(
    "headers", [{"sequence": "1"}, {"sequence": "1", "client": ""}, {"client": "x" * 1025}, {"client": b"\xff"}]
)
def test_a_number_needs_a_client(headers):
    """A sequence needs a client whose name is UTF-8, not empty and not too long."""
    driver = merging()
    driver.pipe_input("7", {"id": 7}, headers)
    assert [reason for reason, _ in rejected(driver)] == ["bad_header"]


@pytest.mark.parametrize(
    "source", ["orders.publish/x/1", "orders.publish/" + "1" * 1000 + "/1", "orders.publish/", "x/1/1"]
)
def test_a_source_that_no_worker_wrote_makes_no_mark_of_its_own(source):
    """A publisher may write any `source`; its number then counts as one that came in here."""
    driver = merging()
    driver.pipe_batch([numbered(5, source=source), numbered(5)])
    assert taken(driver) == [5]
    driver.commit()
    assert [record.key for record in driver.read_output("mark")] == [b"sequence//desk", LIVES_NAME]


@pytest.fixture(autouse=True)
def _plugins(tmp_path, monkeypatch):
    """The plug-ins of `tests/builtin/installed.py` are installed."""
    install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


BAD = {
    "the message": (b"{", {}),
    "another header": (None, {"expiration": "soon"}),
    "the command": (None, {"command": "upsert"}),
    "the explicit key": (None, {"sow_key": "8"}),
    "the size": ({"n": "x" * 2_000_000}, {}),
    "the version": (None, {"expect_version": "9"}),
    "a plug-in that failed": ({"bad": 1}, {}),
    "a delete with a filter": (None, {"command": "sow_delete", "filter": "/n = 1"}),
}
"""For each way to refuse a command: its message (None: a good one), and more headers."""


@pytest.mark.parametrize("keep_store", [True, False, None])
@pytest.mark.parametrize("way", BAD)
def test_a_refused_number_may_be_used_again_after_higher_ones(way, keep_store):
    """Sequences 1, 2 (refused), 3: the mended 2 is merged once, for each reason of a refusal, also after a crash."""
    body, headers = BAD[way]
    driver = merging(preprocess=["fails"])
    driver.pipe_batch([numbered(1), numbered(2, body, **headers), numbered(3)])
    driver.commit()
    if keep_store is not None:
        driver.crash(keep_store=keep_store)
    driver.pipe_batch([numbered(2), numbered(2), numbered(1), numbered(3)])
    driver.commit()
    assert [body["n"] for body in bodies(driver.read_output("delta"))] == [1, 3, 2]
    assert driver.events["duplicate"] == 3
    assert (driver.events["conflict"], driver.rejections.total()) in ((1, 0), (0, 1))


def test_a_number_that_was_taken_is_not_refused_by_a_bad_repeat():
    """A repeat with an unreadable header is rejected, and the next repeat is still a duplicate."""
    driver = merging()
    driver.pipe_batch([numbered(2), numbered(2, expiration="soon"), numbered(1, command="upsert"), numbered(2)])
    driver.commit()
    assert [body["n"] for body in bodies(driver.read_output("delta"))] == [2]
    assert (driver.events["duplicate"], driver.rejections.total()) == (1, 2)


@pytest.mark.parametrize("headers", [{"client": b"\xff"}, {"client": ""}, {"sequence": "-2"}, {"sequence": "x"}])
def test_nothing_is_noted_of_a_command_without_a_readable_number(headers):
    """A command whose client or sequence cannot be read is rejected, and leaves no mark."""
    driver = merging()
    driver.pipe_batch([numbered(1), ("7", {"n": 2}, {"client": "desk", "sequence": "2", **headers}), numbered(3)])
    driver.commit()
    assert driver.rejections == {"bad_header": 1}
    marks = {record.key: (record.value, record.headers) for record in driver.read_output("mark")}
    assert marks.keys() == {b"sequence//desk", LIVES_NAME}
    assert marks[b"sequence//desk"] == (b"3", [])


def test_refused_numbers_of_an_aborted_transaction_do_not_count_twice():
    """After a rollback the numbers are refused again by the same records, and taken by the mended ones."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(2, b"{"), numbered(3), numbered(2)])
    driver.abort()
    driver.pipe_batch([numbered(2)])
    driver.commit()
    assert [body["n"] for body in bodies(driver.read_output("delta"))] == [1, 3, 2]
    assert driver.events == {"duplicate": 1}


def test_a_dead_letter_sent_again_takes_its_number_out_of_the_refused_ones():
    """The dead letter of 2 is sent again and taken; the publisher's own repeat of 2 is then a duplicate."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(2, b"{"), numbered(3)])
    driver.pipe_batch([numbered(2, replay_of="orders.publish/0/1"), numbered(2)])
    driver.commit()
    assert [body["n"] for body in bodies(driver.read_output("delta"))] == [1, 3, 2]
    assert driver.events == {"duplicate": 1}


def test_more_refused_numbers_than_a_mark_lists_are_rejected_and_not_dropped():
    """A number of which the mark knows no more is a dead letter that says so; its ack is a failure."""
    driver = merging()
    count = RANGES_MAX + 1
    for number in range(1, 2 * count, 2):
        driver.pipe_batch([numbered(number), numbered(number + 1, b"{")])
    driver.pipe_batch([numbered(2 * count + 1)])
    driver.commit()
    driver.crash()
    driver.pipe_batch([numbered(2, ack_type="processed"), numbered(1), numbered(4), numbered(4)])
    ((reason, detail),) = rejected(driver)
    assert reason == "bad_header"
    assert "header sequence is 2: whether it was taken is not known" in detail
    assert f"send it again under a number above {2 * count + 1}" in detail
    assert [ack["status"] for ack in acks(driver)] == ["failure"]
    driver.commit()
    assert driver.events == {"duplicate": 2}


def test_one_command_cannot_use_up_the_numbers_of_a_publisher():
    """The highest number there is is a dead letter that names the mark, and the publisher goes on as before."""
    driver = merging()
    driver.pipe_batch([numbered(n) for n in (1, 2, 2**63 - 1, 3)])
    ((reason, detail),) = rejected(driver)
    assert (reason, taken(driver)) == ("bad_header", [1, 2, 3])
    assert "the highest number of this client that was taken here is 2" in detail
    assert f"at most {2**62} above it (sequence_jump_max)" in detail


@pytest.mark.parametrize(
    "first", [1, 1_764_000_000, 1_764_000_000_000, 1_764_000_000_000_000, 1_764_000_000_000_000_000]
)
def test_a_publisher_may_go_on_with_the_time_as_its_number(first):
    """By default a clock in seconds to nanoseconds may be the first number, and follow a small one."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(first + 1), numbered(first + 10**9), numbered(first, client="other")])
    assert rejected(driver) == []


def test_the_limit_of_jumps_is_a_setting():
    """With `sequence_jump_max: 10` a number is at most 10 above the mark, from the second number of a client on."""
    driver = merging(sequence_jump_max=10)
    driver.pipe_batch([numbered(n) for n in (500, 510, 521, 520)])
    assert (taken(driver), [reason for reason, _ in rejected(driver)]) == ([500, 510, 520], ["bad_header"])
    driver = merging(sequence_jump_max=0)
    driver.pipe_batch([numbered(n) for n in (1, 2**63 - 1)])
    assert len(taken(driver)) == 2


def test_a_dead_letter_sent_again_may_not_jump_either():
    """An operator who sends all dead letters again does not use up the numbers of a publisher."""
    driver = merging()
    driver.pipe_batch([numbered(1), numbered(2**63 - 1, replay_of="orders.publish/0/1"), numbered(2)])
    assert taken(driver) == [1, 2]


@pytest.mark.parametrize("body", [b"{", {"n": 2}, {"id": 7, "n": 2, "bad": 1}])
def test_a_refused_command_without_kafka_key_may_be_used_again(body):
    """Where a command without a key is refused on its way to its partition, the mended one is merged there, once."""
    driver = merging(preprocess=["fails"])

    def keyless(sequence, body=None):
        return None, body or {"id": 7, "n": sequence}, {"client": "desk", "sequence": str(sequence)}

    driver.pipe_batch([keyless(1), keyless(2, body), keyless(3)])
    driver.commit()
    driver.crash()
    for number in (2, 2, 1, 3):
        driver.pipe_batch([keyless(number)])
        driver.commit()
    driver.commit()
    assert [body["n"] for body in bodies(driver.read_output("delta"))] == [1, 3, 2]
    assert (driver.rejections.total(), driver.events["duplicate"]) == (1, 3)


def test_a_refused_command_for_another_partition_may_be_used_again():
    """A command that was refused where it came in says so when it is mended, and its repeat does not."""
    driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders", partitions=4, partition=1)
    key = next(f"{n}" for n in range(100) if partition_for(b"%d" % n, 4) != 1)

    def foreign(sequence, **headers):
        return key, {"id": key, "n": sequence}, {"client": "desk", "sequence": str(sequence), **headers}

    driver.pipe_batch([foreign(1), foreign(2, expiration="soon"), foreign(3), foreign(2), foreign(2)])
    driver.commit()
    sources = [dict(record.headers)["source"] for record in driver.read_output("publish")]
    assert sources == [b"orders.publish/1/0", b"orders.publish/1/2", b"orders.publish/1/3+", b"orders.publish/1/4"]
    own = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders")
    own.pipe_batch([(record.key, record.value, record.headers) for record in driver.read_output("publish")])
    assert taken(own) == [1, 3, 2]


def test_a_source_with_a_sign_that_no_worker_wrote_is_none():
    """The sign of a mended command counts only behind a place where a worker has forwarded it."""
    driver = merging()
    driver.pipe_batch([numbered(5), numbered(2, source="x/0/1+"), numbered(3, source="+")])
    assert taken(driver) == [5]


@pytest.mark.random
def test_random_numbers_are_taken_as_often_as_they_were_good(random_seed):
    """Growing, refused, mended, repeated and late numbers, with crashes and rollbacks: each good one is merged once."""
    rng = random.Random(random_seed)
    for _ in range(30):
        driver, sent = merging(), 0
        good: dict[str, set[int]] = {"a": set(), "b": set()}
        refused: dict[str, set[int]] = {"a": set(), "b": set()}
        for _ in range(rng.randrange(2, 12)):
            batch = []
            for _ in range(rng.randrange(1, 15)):
                client = rng.choice("ab")
                used = good[client] | refused[client]
                number = (
                    rng.choice([*used]) if used and rng.random() < 0.4 else max(used, default=0) + rng.randrange(1, 4)
                )
                is_bad = rng.random() < 0.3
                batch.append(numbered(number, b"{" if is_bad else None, client=client))
                if not is_bad:
                    good[client].add(number)
                    refused[client].discard(number)
                elif number not in good[client]:
                    refused[client].add(number)
                sent += 1
            driver.pipe_batch(batch)
            action = rng.choice(["commit", "crash", "wipe", "abort", "nothing"])
            if action == "commit":
                driver.commit()
            elif action == "abort":
                driver.abort()
            elif action != "nothing":
                driver.crash(keep_store=action == "crash")
        driver.commit()
        deltas = map(told, driver.read_output("delta"))
        merged = [(delta["client"], int(delta["sequence"])) for delta in deltas]
        assert sorted(merged) == sorted((client, number) for client in good for number in good[client])
        assert sent == len(merged) + driver.events["duplicate"] + driver.rejections.total()
