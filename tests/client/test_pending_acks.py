import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.client.publish.pending_acks import Lane, PendingAcks, PendingCommand
from processor.errors import AcksMissing, PublishRejected, Stop, VersionConflict
from processor.wire.ack import ACK_TYPES, Ack, AckType

LANE = Lane("orders", 0, "c")


def pending_acks(commands_max: int = 100) -> PendingAcks:
    """A registry without pending commands, with a short stall limit."""
    return PendingAcks(commands_max=commands_max, stall_s=0.05)


def ack(sequence: int | None, ack_type: AckType = "persisted", reason: str | None = None, **other: str) -> Ack:
    """A worker's ack; with a reason it is a failure, except `duplicate`."""
    status = "success" if reason in (None, "duplicate") else "failure"
    return Ack(status, reason, ack_type, "orders", other.get("sow_key"), "c", sequence, other.get("command_id"))


def added(to: PendingAcks, sequence: int, *types: AckType, lane: Lane = LANE, **other: str) -> PendingCommand:
    """Add one more pending command."""
    pending = PendingCommand(types or ("persisted",), sequence, **other)
    to.add(lane, pending)
    to.delivered(lane, pending)
    return pending


def test_one_persisted_settles_all_up_to_its_sequence():
    """A success covers its own partition and client, and each command gets it with its own sequence."""
    waiting = pending_acks()
    first, second = added(waiting, 1, sow_key="a", command_id="x"), added(waiting, 2)
    later = added(waiting, 3)
    others = [added(waiting, 1, lane=LANE._replace(partition=1)), added(waiting, 1, lane=LANE._replace(client="d"))]
    waiting.apply_ack(0, ack(2))
    assert first.future.result(0) == ack(1, sow_key="a", command_id="x")
    assert second.future.result(0).sequence == 2
    assert not any(pending.future.done() for pending in [later, *others])
    assert waiting.count == 3


def test_a_failure_is_an_exception_with_reason_and_detail():
    """A rejected command fails; the later success of a higher sequence does not change that."""
    waiting = pending_acks()
    rejected, merged = added(waiting, 1), added(waiting, 2)
    waiting.apply_ack(0, ack(1, reason="key_mismatch: /id is 'a': the key says 'b'"))
    waiting.apply_ack(0, ack(2))
    with pytest.raises(PublishRejected) as caught:
        rejected.future.result(0)
    assert (caught.value.reason, caught.value.detail) == ("key_mismatch", "/id is 'a': the key says 'b'")
    assert merged.future.result(0).status == "success"


def test_a_conflict_fails_with_the_version_of_the_record():
    """A conditional command that met another version fails with VersionConflict, which has that version."""
    waiting = pending_acks()
    conditional = added(waiting, 1, "processed")
    refused = ack(1, "processed", "conflict: the record has version 9, and the command expects version 7")
    waiting.apply_ack(0, refused._replace(version=9))
    with pytest.raises(VersionConflict, match=r"the command expects version 7") as caught:
        conditional.future.result(0)
    assert (caught.value.reason, caught.value.version) == ("conflict", 9)


def test_the_last_type_settles_and_every_type_is_reported():
    """With `received,processed,persisted` the future waits for `persisted`; `on_ack` gets all three."""
    waiting, delivered = pending_acks(), []
    pending = PendingCommand(("received", "processed", "persisted"), 1, on_ack=delivered.append)
    waiting.add(LANE, pending)
    waiting.delivered(LANE, pending)
    for ack_type in ("received", "processed"):
        waiting.apply_ack(0, ack(1, ack_type))
        assert not pending.future.done()
    waiting.apply_ack(0, ack(5))
    assert [one.ack_type for one in delivered] == ["received", "processed", "persisted"]
    assert pending.future.result(0) == delivered[-1]


def test_a_failure_before_the_last_type_settles_at_once():
    """Later failures of the same command go to `on_ack`; a success for other commands does not."""
    waiting, delivered = pending_acks(), []
    pending = added(waiting, 1, "processed", "completed", "persisted", on_ack=delivered.append)
    waiting.apply_ack(0, ack(1, "processed", "undecodable: no"))
    assert isinstance(pending.future.exception(0), PublishRejected)
    assert waiting.count == 0
    waiting.apply_ack(0, ack(1, "completed", "undecodable: no"))
    waiting.apply_ack(0, ack(4))
    assert [one.ack_type for one in delivered] == ["processed", "completed"]
    assert not waiting._lanes


def test_a_persisted_success_does_not_settle_commands_with_other_acks():
    """A command with `processed` is settled by that ack only; a duplicate's `persisted` covers only itself."""
    waiting, delivered = pending_acks(), []
    processed, earlier = added(waiting, 1, "processed", on_ack=delivered.append), added(waiting, 2)
    duplicate = added(waiting, 3)
    waiting.apply_ack(0, ack(3, reason="duplicate"))
    assert duplicate.future.result(0).reason == "duplicate"
    assert not earlier.future.done()
    waiting.apply_ack(0, ack(3))
    assert earlier.future.done()
    assert not processed.future.done()
    assert delivered == []


def test_a_command_that_is_mended_is_settled_by_its_own_ack():
    """A success of 3 does not cover a command 2 that was sent after it: its first attempt had failed."""
    waiting = pending_acks()
    refused, later = added(waiting, 2), added(waiting, 3)
    waiting.apply_ack(0, ack(2, reason="undecodable: no"))
    mended = added(waiting, 2)
    waiting.apply_ack(0, ack(3))
    waiting.apply_ack(0, ack(3))
    assert isinstance(refused.future.exception(0), PublishRejected)
    assert (later.future.done(), mended.future.done()) == (True, False)
    waiting.apply_ack(0, ack(2, reason="undecodable: again"))
    assert isinstance(mended.future.exception(0), PublishRejected)


def test_a_command_is_covered_by_a_higher_one_that_was_sent_after_it():
    """Where 3 was refused, 2 may come after it; a success of 4, which was sent later, covers it."""
    waiting = pending_acks()
    added(waiting, 3)
    waiting.apply_ack(0, ack(3, reason="undecodable: no"))
    late, last = added(waiting, 2), added(waiting, 4)
    waiting.apply_ack(0, ack(4))
    assert late.future.done()
    assert last.future.done()


def test_a_duplicate_says_so():
    """The result of a command that was taken before differs from that of others."""
    assert ack(3, reason="duplicate").is_duplicate
    assert not ack(3).is_duplicate
    assert not ack(3, reason="conflict: no").is_duplicate


def test_one_sequence_sent_twice_is_two_commands():
    """A publisher that repeats a command before its ack gets one ack for each."""
    waiting = pending_acks()
    pair = [added(waiting, 7, "processed"), added(waiting, 7, "processed")]
    waiting.apply_ack(0, ack(7, "processed"))
    assert [one.future.done() for one in pair] == [True, False]
    waiting.apply_ack(0, ack(7, "processed", "duplicate"))
    assert pair[1].future.result(0).reason == "duplicate"


def test_a_failure_without_a_sequence_is_found_by_its_command_id():
    """If the worker could not read the sequence, the command id identifies the command."""
    waiting = pending_acks()
    named, other = added(waiting, 1, command_id="x"), added(waiting, 2, command_id="y")
    waiting.apply_ack(0, ack(None, reason="bad_header: no", command_id="x"))
    assert (named.future.done(), other.future.done()) == (True, False)


def test_a_record_that_kafka_did_not_take_fails_with_that():
    """A failed delivery fails the future; a command that was never sent is removed."""
    waiting = pending_acks()
    lost, unsent = added(waiting, 1), added(waiting, 2)
    waiting.withdraw(LANE, lost, Stop("gone"))
    waiting.withdraw(LANE, unsent)
    assert str(lost.future.exception(0)) == "gone"
    assert waiting.count == 0
    waiting.withdraw(LANE, lost, Stop("again"))
    waiting.wait(0)


def test_a_late_delivery_report_changes_nothing():
    """A failure may arrive before the delivery report; no report settles a command twice."""
    waiting, delivered = pending_acks(), []
    rejected, over = (PendingCommand(("processed", "persisted"), number, on_ack=delivered.append) for number in (1, 2))
    for pending in (rejected, over):
        waiting.add(LANE, pending)
    waiting.apply_ack(0, ack(1, "processed", "undecodable: no"))
    waiting.withdraw(LANE, rejected, Stop("lost"))
    waiting.apply_ack(0, ack(2))
    waiting.apply_ack(0, ack(2, "persisted", "undecodable: no"))
    waiting.delivered(LANE, over)
    assert isinstance(rejected.future.exception(0), PublishRejected)
    assert isinstance(over.future.exception(0), PublishRejected)
    assert [one.status for one in delivered] == ["failure", "failure"]
    assert waiting.count == 0


def test_an_ack_does_not_cover_an_undelivered_command():
    """A success covers a command only once Kafka has it: a lost one still fails."""
    waiting = pending_acks()
    lost, late = PendingCommand(("persisted",), 1), PendingCommand(("persisted",), 2)
    for pending in (lost, late):
        waiting.add(LANE, pending)
    fetched = added(waiting, 3)
    waiting.apply_ack(0, ack(3))
    assert [one.future.done() for one in (lost, late, fetched)] == [False, False, True]
    waiting.withdraw(LANE, lost, Stop("lost"))
    waiting.delivered(LANE, late)
    assert str(lost.future.exception(0)) == "lost"
    assert late.future.result(0).sequence == 2
    assert waiting.count == 0


def test_closing_fails_all_commands_and_later_ones():
    """No future stays open when the client is closed, and no topic begins again."""
    waiting = pending_acks()
    pending = added(waiting, 1)
    waiting.close(Stop("no more"))
    assert str(pending.future.exception(0)) == "no more"
    waiting.begin("orders")
    with pytest.raises(Stop, match="no more"):
        added(waiting, 2)
    waiting.apply_ack(0, ack(1))
    assert waiting.count == 0


def test_a_topic_whose_acks_cannot_be_read_fails_its_own_commands():
    """Only the commands of that topic fail, and later ones until its acks are read again."""
    waiting = pending_acks()
    for topic in ("orders", "positions"):
        waiting.begin(topic)
    failing, other = added(waiting, 1), added(waiting, 1, lane=LANE._replace(topic="positions"))
    waiting.fail("orders", Stop("the topic is gone"))
    assert str(failing.future.exception(0)) == "the topic is gone"
    assert (waiting.count, other.future.done(), waiting.waits_for(b"c")) == (1, False, True)
    assert [waiting.is_read(topic) for topic in ("orders", "positions")] == [False, True]
    with pytest.raises(Stop, match="the topic is gone"):
        added(waiting, 2)
    waiting.apply_ack(0, ack(1)._replace(topic="positions"))
    assert other.future.result(0).status == "success"
    assert not waiting.waits_for(b"c")
    waiting.begin("orders")
    again = added(waiting, 2)
    waiting.apply_ack(0, ack(2))
    assert again.future.result(0).sequence == 2
    assert waiting.count == 0


def test_an_exception_of_a_callback_is_contained(caplog: pytest.LogCaptureFixture):
    """An exception of a callback is logged; its own future and the others are settled."""
    waiting = pending_acks()
    pending = PendingCommand(("persisted",), 1, on_ack=lambda _: 1 / 0)
    waiting.add(LANE, pending)
    waiting.delivered(LANE, pending)
    other = added(waiting, 2)
    waiting.apply_ack(0, ack(2))
    assert pending.future.result(0)
    assert other.future.result(0)
    assert "division by zero" in caplog.text


def test_a_future_cannot_be_cancelled():
    """A sent record cannot be recalled, so `cancel` returns False instead of hiding the ack."""
    waiting = pending_acks()
    pending = added(waiting, 1)
    assert not pending.future.cancel()
    waiting.apply_ack(0, ack(1))
    assert pending.future.result(0)


def test_waiting_ends_with_the_number_of_missing_acks_and_advice():
    """Without a worker, waiting for all acks, or for room, ends with an error."""
    waiting = pending_acks(commands_max=2)
    added(waiting, 1)
    waiting.wait_for_room()
    added(waiting, 2)
    for wait in (lambda: waiting.wait(0.01), lambda: waiting.wait(None), waiting.wait_for_room):
        with pytest.raises(AcksMissing, match=r"acks are missing, .*: 2\. .*`sowstream worker orders`"):
            wait()


def test_the_thread_of_the_acks_does_not_wait_for_itself():
    """A callback that flushes, or publishes beyond the limit, gets an error at once instead of blocking."""
    waiting = pending_acks(commands_max=1)
    added(waiting, 1)
    for wait in (waiting.wait_for_room, lambda *, may_wait: waiting.wait(None, may_wait=may_wait)):
        with pytest.raises(AcksMissing, match="a callback"):
            wait(may_wait=False)


def test_acks_that_keep_coming_are_waited_for():
    """The stall limit counts from the last ack, and a caller who waits for room takes the first free place."""
    waiting = PendingAcks(commands_max=1, stall_s=600)
    added(waiting, 1)
    helper = threading.Thread(target=waiting.apply_ack, args=(0, ack(1)))
    helper.start()
    began_s = time.monotonic()
    waiting.wait_for_room()
    waiting.wait(None)
    assert time.monotonic() - began_s < 60
    helper.join()


def test_the_count_of_a_delete_comes_with_its_last_ack():
    """`stats` may arrive before or after `persisted`: the future is done with both, and has the count."""
    waiting = pending_acks()
    counted = ack(1, "stats")._replace(records_deleted=3)
    for acks in ([counted, ack(1)], [ack(1), counted]):
        pending = added(waiting, 1, "persisted", "stats")
        for one in acks:
            assert not pending.future.done()
            waiting.apply_ack(0, one)
        assert pending.future.result(0).records_deleted == 3


FATES = st.sampled_from(["merged", "rejected", "lost"])
TYPES = st.sets(st.sampled_from(ACK_TYPES), min_size=1).map(lambda some: tuple(t for t in ACK_TYPES if t in some))
COMMANDS = st.lists(st.tuples(st.integers(0, 2), FATES, TYPES), max_size=30)


@given(COMMANDS, st.data())
def test_each_command_is_settled_once_and_rightly(commands: list[tuple[int, str, tuple[AckType, ...]]], data):
    """For any outcomes, commits and order of events, each future gets the outcome of its own command."""
    waiting, pendings, delivered = pending_acks(), [], []
    settled: list[int] = []
    for sequence, (partition, _, types) in enumerate(commands, 1):
        pending = PendingCommand(types, sequence, on_ack=delivered.append)
        pending.future.add_done_callback(lambda done: settled.append(id(done)))
        waiting.add(LANE._replace(partition=partition), pending)
        pendings.append(pending)
    reports = list(zip(pendings, commands, strict=True))
    acks = [_worker(partition, commands, data) for partition in range(3)]
    while reports or any(acks):
        source = data.draw(st.sampled_from([3] * bool(reports) + [number for number in range(3) if acks[number]]))
        if source < 3:
            said = acks[source].pop(0)
            waiting.apply_ack(source, said)
            _nothing_is_settled_early(commands, pendings, source, said)
            continue
        pending, (partition, fate, _) = reports.pop(0)
        if fate == "lost":
            waiting.withdraw(LANE._replace(partition=partition), pending, Stop("lost"))
        else:
            waiting.delivered(LANE._replace(partition=partition), pending)
    for pending, (_, fate, types) in zip(pendings, commands, strict=True):
        error = pending.future.exception(0)
        if fate == "lost":
            assert type(error) is Stop
        elif fate == "rejected" and types != ("received",):
            assert type(error) is PublishRejected
        else:
            assert pending.future.result(0).sequence == pending.sequence
            # A worker sends the `persisted` successes of a batch after everything else.
            in_order = sorted(types, key=lambda one: one == "persisted")
            assert [one.ack_type for one in delivered if one.sequence == pending.sequence] == in_order
    assert len(settled) == len(set(settled)) == len(pendings)
    assert waiting.count == 0
    assert not waiting._lanes


def _worker(partition: int, commands: list[tuple[int, str, tuple[AckType, ...]]], data) -> list[Ack]:
    """The acks of one partition as a worker writes them, commit by commit."""
    acks: list[Ack] = []
    highest = 0
    for sequence, (own, fate, types) in enumerate(commands, 1):
        if own != partition or fate == "lost":
            continue
        for ack_type in types:
            if fate == "rejected" and ack_type != "received":
                acks.append(ack(sequence, ack_type, "undecodable: no"))
            elif ack_type == "persisted":
                highest = sequence
            else:
                acks.append(ack(sequence, ack_type))
        if highest and data.draw(st.booleans()):
            acks.append(ack(highest))
            highest = 0
    return [*acks, ack(highest)] if highest else acks


def _nothing_is_settled_early(commands, pendings, partition: int, said: Ack) -> None:
    """Check after one ack that no later command that waits for more acks is done."""
    assert said.sequence is not None
    for pending, (own, fate, types) in zip(pendings, commands, strict=True):
        if own == partition and pending.sequence > said.sequence and fate != "lost":
            heard_all = types[-1] not in pending.awaited
            assert pending.future.done() == heard_all or fate == "rejected"
