"""Dead letters go back to the input exactly once, truncated ones in full, despite failures of the replay."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import time

import pytest
from confluent_kafka import Producer

import processor.operate.letter_replay
from processor.errors import Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import GroupInspector
from processor.kafka.admin.topic_changes import TopicChanges
from processor.operate.letter_replay import DeadLetterReplay
from processor.operate.waiting_letters import LetterSelection, WaitingLetters, survey
from processor.runtime.worker.watcher import BacklogWatch
from tests.operate.conftest import Office
from tests.waiting import until

pytestmark = pytest.mark.broker


def numbers(office: Office) -> list[int]:
    """The numbers of the letters that were sent back."""
    return [int(seen.value or b"") for seen in office.sent()]


def test_only_those_of_the_reason_are_sent_and_the_others_wait_on(office: Office) -> None:
    """Other letters are appended unchanged where one is before a selected one; the next replay sends them."""
    office.write(*["key_mismatch", "undecodable"] * 8)
    before = {letter["value"]: letter for letter in office.waiting()}
    assert office.replay(LetterSelection("undecodable")) == 8
    assert [seen.headers for seen in office.sent()] == [
        {"n": str(n), "replay_of": f"{office.name}.publish/0/{n}"} for n in range(1, 16, 2)
    ]
    after = {letter["value"]: letter for letter in office.waiting()}
    assert sorted(after) == [*range(0, 16, 2)]
    for number, letter in after.items():
        assert letter | {"offset": 0, "timestamp": ""} == before[number] | {"offset": 0, "timestamp": ""}
    assert any(letter["offset"] != before[number]["offset"] for number, letter in after.items())
    assert office.replay(LetterSelection("undecodable")) == 0

    assert (office.replay(), office.replay()) == (8, 0)
    assert numbers(office) == [*range(16)]
    assert office.waiting() == []


def test_the_other_letters_of_a_key_wait_on_in_their_order(office: Office) -> None:
    """A letter that is appended again comes before the later ones of its key, also those behind the selected one."""
    reasons = ["key_mismatch", "undecodable", "key_mismatch"]
    letters = [(b"7", b"%d" % number, {"dlq_reason": reason}) for number, reason in enumerate(reasons)]
    office.world.publish(letters, "dlq")
    assert office.replay(LetterSelection("undecodable")) == 1
    assert [letter["value"] for letter in office.waiting()] == [0, 2]
    assert office.replay() == 2
    assert [seen.value for seen in office.world.read("publish")] == [b"1", b"0", b"2"]


def test_an_interrupted_replay_keeps_the_order_of_the_others(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The letters of a partition move in one transaction, however few of them each read returns."""
    reasons = ["key_mismatch", "undecodable", "undecodable", "key_mismatch", "undecodable"]
    letters = [(b"7", b"%d" % number, {"dlq_reason": reason}) for number, reason in enumerate(reasons)]
    office.world.publish(letters, "dlq")
    monkeypatch.setattr("processor.client.feeds.snapshot_boundary._READ_MAX", 1)
    selection = LetterSelection("undecodable")

    def interrupt(_count: int) -> None:
        raise KeyboardInterrupt

    with DeadLetterReplay(office.config, office.name) as running, contextlib.suppress(KeyboardInterrupt):
        running.send(survey(running.waiting.letters(), selection), selection, interrupt)
    assert [letter["value"] for letter in office.waiting()] == [0, 3]
    assert office.replay() == 2
    assert [seen.value for seen in office.world.read("publish")] == [b"1", b"2", b"4", b"0", b"3"]


def test_a_replay_moves_the_position_behind_the_markers_of_transactions(office: Office) -> None:
    """Nothing is counted as waiting after the replay of all letters, nor after one that finds none."""
    group, topic = office.config.letters_group(office.name), f"{office.name}.dlq"
    watch = BacklogWatch(Admin(office.config.kafka), GroupInspector(office.config.kafka), [])
    producer = Producer({**office.config.kafka, "transactional.id": office.name})
    producer.init_transactions(60)
    for _ in range(2):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(topic, b"1", b"k", partition, headers={"dlq_reason": "undecodable"})
        producer.commit_transaction(60)
    until(lambda: set(watch._behind(group, topic, [0, 1]).values()) == {4}, "the markers of the transactions")
    assert office.replay() == 4
    until(lambda: set(watch._behind(group, topic, range(4)).values()) == {0}, "the markers of the transactions")
    producer.begin_transaction()
    producer.produce(topic, b"1", b"k", 0, headers={"dlq_reason": "undecodable"})
    assert producer.flush(60) == 0
    producer.abort_transaction(60)
    assert office.replay() == 0
    until(lambda: set(watch._behind(group, topic, range(4)).values()) == {0}, "the markers of the transactions")


def test_letters_after_the_last_selected_one_stay(office: Office) -> None:
    """A replay without selected letters writes nothing."""
    office.write(*["undecodable"] * 8, *["key_mismatch"] * 8)
    before = {letter["value"]: letter["offset"] for letter in office.waiting()}
    assert office.replay(LetterSelection("bad_header")) == 0
    assert office.replay(LetterSelection("undecodable")) == 8
    assert {letter["value"]: letter["offset"] for letter in office.waiting()} == {n: before[n] for n in range(8, 16)}


def test_each_goes_to_the_partition_it_came_from(office: Office) -> None:
    """Key, value and partition are those of the dead letter, also for a tombstone."""
    office.write(*["undecodable"] * 8)
    office.world.publish([(None, None, {"dlq_reason": "missing_key"})], "dlq")
    letters = sorted((seen.partition, seen.key or b"", seen.value or b"") for seen in office.world.read("dlq"))
    assert len({partition for partition, *_ in letters}) > 1
    assert office.replay() == 9
    sent = office.world.read("publish")
    assert sorted((seen.partition, seen.key or b"", seen.value or b"") for seen in sent) == letters
    assert [seen.key for seen in sent if seen.value is None] == [None]


@pytest.mark.parametrize(
    ("point", "code"),
    [
        ("before commit", -9),
        ("commit of unknown end", 1),
        ("Ctrl-C", 130),
    ],
)
def test_a_replay_that_dies_is_run_again_and_sends_each_once(office: Office, point: str, code: int) -> None:
    """A replay killed before or after a commit, interrupted or rolled back sends each letter once when run again."""
    office.write(*["undecodable", "key_mismatch"] * 8)
    first = office.run("replay", "--reason", "key_mismatch", crash=(point, 2))
    assert first.returncode == code, first.stderr
    assert "Traceback" not in first.stderr
    if code == 1:
        assert "run the same command again" in first.stderr
    if code == 130:
        # Its open transaction was rolled back: no reader waits for it.
        assert f"dead letters of {office.name} sent back, the rest waits on" in first.stderr
        assert len(office.waiting()) + len(office.sent()) == 16
    office.replay(LetterSelection("key_mismatch"))
    assert numbers(office) == [*range(1, 16, 2)]
    assert sorted(letter["value"] for letter in office.waiting()) == [*range(0, 16, 2)]


def test_of_two_replays_the_later_one_takes_over(office: Office) -> None:
    """The earlier replay gets an error, its open transaction is rolled back, and no letter is sent twice."""
    office.write(*["undecodable"] * 8)
    with DeadLetterReplay(office.config, office.name) as earlier:
        found = survey(earlier.waiting.letters(), LetterSelection())
        earlier._producer.send(f"{office.name}.publish", 0, [(b"k", b"99", [])])
        with DeadLetterReplay(office.config, office.name) as later:
            with pytest.raises(Stop, match="another replay of this topic was started and has taken over"):
                earlier.send(found, LetterSelection())
            later.send(survey(later.waiting.letters(), LetterSelection()), LetterSelection())
    assert numbers(office) == [*range(8)]


def test_a_replay_with_a_new_producer_sees_the_commits_of_another(office: Office) -> None:
    """After a slow commit the replay gets a new producer, and must not repeat the work of one that took over."""
    office.write(*["undecodable"] * 8)
    with DeadLetterReplay(office.config, office.name) as earlier:
        found = survey(earlier.waiting.letters(), LetterSelection())
        assert office.replay() == 8
        earlier._producer.start()
        with pytest.raises(Stop, match="has taken over"):
            earlier.send(found, LetterSelection())
    assert numbers(office) == [*range(8)]


@pytest.mark.long
def test_random_interrupted_replays_send_each_letter_once(
    office: Office, monkeypatch: pytest.MonkeyPatch, random_seed: int
) -> None:
    """With random selections and interruptions between transactions, each letter goes back once."""
    rng = random.Random(random_seed)
    monkeypatch.setattr(processor.operate.letter_replay, "_LETTERS_MAX", 3)
    reasons = [rng.choice(["undecodable", "key_mismatch", "bad_header"]) for _ in range(40)]
    office.write(*reasons)
    for _ in range(3):
        selection, left = LetterSelection(rng.choice(["undecodable", "key_mismatch"])), rng.randint(1, 6)

        def break_off(_count: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        with DeadLetterReplay(office.config, office.name) as running, contextlib.suppress(KeyboardInterrupt):
            running.send(survey(running.waiting.letters(), selection), selection, break_off)
        assert sorted([*numbers(office), *(letter["value"] for letter in office.waiting())]) == [*range(40)]
    office.replay()
    assert numbers(office) == [*range(40)]
    assert office.waiting() == []


@pytest.mark.parametrize("retention_ms", [None, -1, 30 * 86_400_000])
def test_letters_older_than_the_memory_of_positions_do_not_wait(office: Office, retention_ms: int | None) -> None:
    """Without a position, which Kafka may have forgotten, they may have been sent back; a replay leaves them by choice.

    The gauge counts those that wait.
    """
    if retention_ms is not None:
        TopicChanges(office.config.kafka).set_config(f"{office.name}.dlq", {"retention.ms": str(retention_ms)})
    producer = Producer({"bootstrap.servers": office.world.bootstrap})
    for days in (8, 6):
        past_ms = int((time.time() - days * 86_400) * 1000)
        producer.produce(f"{office.name}.dlq", b"%d" % days, b"k", 1, timestamp=past_ms)
    assert producer.flush(120) == 0
    group, topic = office.config.letters_group(office.name), f"{office.name}.dlq"
    watch = BacklogWatch(Admin(office.config.kafka), GroupInspector(office.config.kafka), [])
    assert watch._behind(group, topic, range(4), are_letters=True) == {0: 0, 1: 1, 2: 0, 3: 0}
    assert [letter["value"] for letter in office.waiting()] == [6]
    with WaitingLetters(office.config, office.name) as there:
        assert [len(letters) for _, letters in there.everything() if letters] == [2]
    listed = office.run("list")
    notice = f"1 older dead letter of {office.name} may have been sent back"
    assert notice in listed.stderr
    for refused in (office.run("replay"), office.run("replay", "--dry-run")):
        assert refused.returncode == 1
        assert notice in refused.stderr
        assert "Give --leave-older to send the newer ones only" in refused.stderr
        assert f"--group {group} --topic {topic}:1 --to-earliest" in refused.stderr
    assert office.sent() == []
    if retention_ms is None:
        replayed = office.run("replay", "--leave-older")
        assert (replayed.returncode, notice in replayed.stderr) == (0, True)
        assert numbers(office) == [6]
    else:
        Admin(office.config.kafka).set_offsets(group, topic, {1: 0})
        assert office.run("replay").returncode == 0
        assert numbers(office) == [6, 8]
    assert office.run("replay").returncode == 0
    until(lambda: not any(watch._behind(group, topic, range(4), are_letters=True).values()), "the replay's position")


LARGE = json.dumps({"id": 1, "text": "a large record " * 1_500_000}).encode()
"""21 MiB that compress to a few KB."""


def _publish_large(office: Office) -> None:
    """Publish like a publisher with gzip and without a size limit of its own."""
    producer = Producer(
        {"bootstrap.servers": office.world.bootstrap, "compression.type": "gzip", "message.max.bytes": 64_000_000}
    )
    producer.produce(f"{office.name}.publish", LARGE, b"1", 0, headers={"trace": "it"})
    assert producer.flush(60) == 0


def _cut_letter(office: Office, offset: int, checksum: str | None = None) -> None:
    """Write a dead letter as a worker does."""
    source = f"{office.name}.publish/0/{offset}"
    sha256 = checksum or hashlib.sha256(LARGE).hexdigest()
    headers = {"dlq_reason": "too_large", "dlq_detail": "no", "source": source}
    cut = {"dlq_bytes": str(len(LARGE)), "dlq_sha256": sha256, "dlq_truncated": "true"}
    office.world.publish([(b"1", LARGE[:1000], headers | cut)], "dlq")


def test_a_truncated_letter_is_sent_in_full_or_waits(office: Office) -> None:
    """One record is still in the input, one was replaced, one is gone; the command reports the latter two."""
    _publish_large(office)
    _cut_letter(office, 0)
    _cut_letter(office, 0, "0" * 64)
    _cut_letter(office, 7)
    with DeadLetterReplay(office.config, office.name) as running:
        running.send(survey(running.waiting.letters(), LetterSelection()), LetterSelection())
        assert running.sent == 1
        assert len(running.unsent) == 2
        assert "its checksum is not the letter's" in running.unsent[0]
        assert "/0/7 is not there any more" in running.unsent[1]
    first, again = office.world.read("publish")
    assert first.value == again.value == LARGE
    assert again.headers == {"trace": "it", "replay_of": f"{office.name}.publish/0/0"}
    assert [letter["dlq_bytes"] for letter in office.waiting()] == [len(LARGE)] * 2
    result = office.run("replay")
    assert result.returncode == 1
    assert "is not there any more" in result.stderr
    assert "0 dead letters" in result.stderr
    assert len(office.waiting()) == 2
