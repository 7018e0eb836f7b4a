"""Dead letters go back to the input exactly once, whatever happens to whoever sends them."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter

import pytest
from confluent_kafka import Producer

import processor.dlq.replay
from processor.config import Config
from processor.dlq import Choice, Replay, Waiting, survey
from processor.errors import Stop
from tests.dlq.conftest import Office

pytestmark = pytest.mark.broker


def send_all(running: Replay, choice: Choice) -> None:
    """Look, then send."""
    running.send(survey(running.waiting.letters(), choice), choice)


def waiting(config: Config, topic: str) -> Counter[str]:
    """What waits, by reason."""
    with Waiting(config, topic) as there:
        return survey(there.letters(), Choice()).waiting


def test_rejected_records_are_shown_sent_back_and_shown_again_when_rejected_again(office: Office) -> None:
    """A worker's dead letters, from beginning to end: the new ones tell of the records that were sent again."""
    world = office.world
    bad = [
        (b"1", b"{not json", {"trace": "1"}),
        (b"1", b'{"id":1}', {"command": "upsert"}),
        (b"1", b'{"id":2}', {"source": "mine"}),
    ]
    world.publish([(b"1", {"id": 1}, {}), *bad, (b"1", {"id": 1, "n": 1}, {})])
    world.start()
    world.settle()

    first = office.list()
    assert [letter["reason"] for letter in first] == ["undecodable", "unknown_command", "key_mismatch"]
    assert [letter["headers"] for letter in first] == [headers for _, _, headers in bad]
    assert first[0]["text"] == "{not json"
    assert all(letter["detail"] for letter in first)
    assert [letter["value"] for letter in first[1:]] == [{"id": 1}, {"id": 2}]

    assert office.replay() == f"3 dead letters of {world.name} sent back."
    world.wait(lambda: len(world.read("dlq")) == 6, "rejecting them again")
    again = office.list()
    assert [letter["reason"] for letter in again] == [letter["reason"] for letter in first]
    for letter, before, (_, _, headers) in zip(again, first, bad, strict=True):
        assert letter["headers"] == headers | {"replay_of": before["source"]}
        assert int(letter["source"].split("/")[2]) > int(before["source"].split("/")[2])
    kept = office.list("--all")
    assert [letter["waits"] for letter in kept] == [False] * 3 + [True] * 3
    assert len(world.read("sow")) == 2


def test_only_those_of_the_reason_are_sent_and_the_others_wait_on(office: Office) -> None:
    """Unchanged, but at the end again where they were passed by; the next replay finds them."""
    office.write("undecodable", "key_mismatch", "bad_header", "undecodable", "key_mismatch", "undecodable")
    before = {letter["value"]: letter for letter in office.list()}
    name = office.world.name
    dry = office.run("replay", "--reason", "undecodable", "--dry-run")
    assert f"3 of 6 waiting dead letters would be sent back to {name}.publish" in dry.stderr
    assert (len(office.list()), office.sent()) == (6, [])

    assert office.replay("--reason", "undecodable") == f"3 dead letters of {name} sent back, 3 others wait on."
    sent = office.sent()
    assert [seen.value for seen in sent] == [b"0", b"3", b"5"]
    assert [seen.headers for seen in sent] == [{"n": str(n), "replay_of": f"{name}.publish/0/{n}"} for n in (0, 3, 5)]
    after = {letter["value"]: letter for letter in office.list()}
    assert sorted(after) == [1, 2, 4]
    for number, letter in after.items():
        assert letter | {"offset": 0, "timestamp": ""} == before[number] | {"offset": 0, "timestamp": ""}
    assert office.replay("--reason", "undecodable") == f"0 dead letters of {name} sent back, 3 others wait on."

    assert office.replay() == f"3 dead letters of {name} sent back."
    assert office.replay() == f"0 dead letters of {name} sent back."
    assert [seen.value for seen in office.sent()] == [b"%d" % n for n in range(6)]
    assert office.list() == []


def test_one_dead_letter_is_sent_to_the_partition_it_came_from(office: Office) -> None:
    """By its place in the dead-letter topic; one that is not there is told, and nothing is sent."""
    office.write(*["undecodable"] * 8)
    chosen = office.list()[5]
    place = ("--partition", str(chosen["partition"]), "--offset", str(chosen["offset"]))
    assert office.replay(*place).startswith("1 dead letters")
    (sent,) = office.sent()
    assert (int(sent.value or b""), sent.partition) == (chosen["value"], chosen["partition"])
    missing = office.run("replay", *place)
    assert missing.returncode == 1
    assert f"no such dead letter of {office.world.name} waits" in missing.stderr
    assert len(office.list()) == 7


@pytest.mark.parametrize("point", ["before commit", "after commit, before apply", "abort", "commit of unknown end"])
def test_a_replay_that_dies_is_run_again_and_sends_each_once(office: Office, point: str) -> None:
    """Killed before or after a commit, or told by the broker to roll back."""
    office.write(*["undecodable", "key_mismatch"] * 8)
    first = office.run("replay", "--reason", "key_mismatch", crash=(point, 2))
    assert first.returncode != 0
    if "abort" in point or "unknown" in point:
        assert "run the same command again" in first.stderr
    office.replay("--reason", "key_mismatch")
    assert [seen.value for seen in office.sent()] == [b"%d" % n for n in range(1, 16, 2)]
    assert sorted(letter["value"] for letter in office.list()) == list(range(0, 16, 2))


def test_of_two_replays_the_later_one_takes_over(office: Office) -> None:
    """The earlier one is told so, what it had open is rolled back, and nothing is sent twice."""
    office.write(*["undecodable"] * 8)
    config, name = office.world.config, office.world.name
    with Replay(config, name) as earlier:
        found = survey(earlier.waiting.letters(), Choice())
        earlier._producer.send(f"{name}.publish", 0, [(b"k", b"99", [])])
        with Replay(config, name) as later:
            with pytest.raises(Stop, match="another replay of this topic was started and has taken over"):
                earlier.send(found, Choice())
            send_all(later, Choice())
    assert [seen.value for seen in office.sent()] == [b"%d" % n for n in range(8)]


def test_a_replay_that_got_a_new_producer_sees_what_another_one_did_meanwhile(office: Office) -> None:
    """A slow commit costs the producer, and its successor fences whoever had taken over: but that one was here."""
    office.write(*["undecodable"] * 8)
    config, name = office.world.config, office.world.name
    with Replay(config, name) as earlier:
        found = survey(earlier.waiting.letters(), Choice())
        with Replay(config, name) as later:
            send_all(later, Choice())
        earlier._producer.start()
        with pytest.raises(Stop, match="has taken over"):
            earlier.send(found, Choice())
    assert [seen.value for seen in office.sent()] == [b"%d" % n for n in range(8)]


def test_whatever_is_chosen_and_wherever_it_breaks_off(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random replays of random reasons, some broken off between two transactions: each letter goes back once."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setattr(processor.dlq.replay, "_LETTERS_MAX", 3)
    config, name = office.world.config, office.world.name
    reasons = [rng.choice(["undecodable", "key_mismatch", "bad_header"]) for _ in range(40)]
    office.write(*reasons)
    for _ in range(4):
        choice, left = Choice(rng.choice(["undecodable", "key_mismatch"])), rng.randint(1, 6)

        def break_off(_count: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        with Replay(config, name) as running, contextlib.suppress(KeyboardInterrupt):
            running.send(survey(running.waiting.letters(), choice), choice, break_off)
        sent = Counter(reasons[int(seen.value or b"")] for seen in office.sent())
        assert sent + waiting(config, name) == Counter(reasons)
    with Replay(config, name) as running:
        send_all(running, Choice())
    assert [seen.value for seen in office.sent()] == [b"%d" % n for n in range(40)]
    assert waiting(config, name).total() == 0


def test_what_is_past_its_retention_is_not_taken_for_waiting(office: Office) -> None:
    """Where Kafka knows no position, it may have forgotten one: those letters may have been sent back."""
    config, name = office.world.config, office.world.name
    producer = Producer({"bootstrap.servers": office.world.bootstrap})
    producer.produce(f"{name}.dlq", b"1", b"k", timestamp=int((time.time() - 8 * 86_400) * 1000))
    assert producer.flush(30) == 0
    assert waiting(config, name).total() == 0
    with Waiting(config, name) as there:
        assert [len(letters) for _, letters in there.everything() if letters] == [1]


def test_a_conflated_topics_letters_are_listed_but_not_replayed(office: Office) -> None:
    """They came from a SOW topic; the refusal says what to do instead."""
    world = office.world
    world.name, name = world.conflated, world.name
    office.write("plugin_failed")
    assert [letter["reason"] for letter in office.list()] == ["plugin_failed"]
    refused = office.run("replay")
    assert refused.returncode == 2
    assert f"publish the records of their keys to '{name}' again" in refused.stderr
    world.name = name
