"""The conflated topic: when each key is delivered, and the headers of each delivery."""

import pytest

from processor.builtin.conflate import Conflate
from processor.config import ConflatedConfig, TopicConfig
from processor.errors import PartitionHeld
from processor.store.layout import encode_record
from processor.testing import ProcessorTestDriver
from tests.builtin.conflate.underlying import INTERVAL_MS, Underlying, delivered
from tests.builtin.merging import bodies, seen, told
from tests.endtoend.oracle import last_per_key, replay


@pytest.fixture
def orders() -> Underlying:
    """An underlying topic without records."""
    return Underlying()


def settle(orders: Underlying, key: str, body: object) -> None:
    """A record that was delivered a while ago."""
    orders.update(key, body)
    orders.driver.advance_time(INTERVAL_MS)
    orders.driver.commit()


class TestTime:
    """conflation.md: intervals are per key, by wall clock."""

    def test_the_first_update_is_late_by_one_interval(self, orders):
        """The first update waits for the end of the interval that it begins, to the millisecond."""
        orders.update("7", {"id": 7})
        orders.driver.advance_time(INTERVAL_MS - 1)
        assert delivered(orders) == []
        orders.driver.advance_time(1)
        assert delivered(orders) == [{"id": 7}]

    def test_later_updates_do_not_restart_the_timer(self, orders):
        """A key that never rests is delivered every interval, with its state at the end of it."""
        deliveries = []
        for n in range(31):
            orders.update("7", {"id": 7, "n": n})
            orders.driver.advance_time(100)
            deliveries.append(delivered(orders))
        assert [turn for turn, records in enumerate(deliveries) if records] == [9, 19, 29]
        assert deliveries[9] == [{"id": 7, "n": 9}]

    def test_a_quiet_topic_delivers(self, orders):
        """Time is the wall clock, not the next record."""
        orders.update("7", {"id": 7})
        orders.driver.advance_time(INTERVAL_MS)
        assert delivered(orders) == [{"id": 7}]

    def test_an_idle_key_begins_a_new_interval_with_its_next_update(self, orders):
        """An idle key begins a new interval with its next update, at any time after its last delivery."""
        settle(orders, "7", {"id": 7, "n": 1})
        orders.driver.advance_time(10 * INTERVAL_MS)
        orders.update("7", {"id": 7, "n": 2})
        orders.driver.advance_time(INTERVAL_MS - 1)
        assert delivered(orders) == []
        orders.driver.advance_time(1)
        assert delivered(orders) == [{"id": 7, "n": 2}]

    def test_every_key_has_its_own_interval(self, orders):
        """One punctuation delivers the keys that are due, the others wait."""
        for n in range(4):
            orders.update(str(n), {"id": n})
            orders.driver.advance_time(300)
        assert delivered(orders) == [{"id": 0}]
        orders.driver.advance_time(600)
        assert delivered(orders) == [{"id": 1}, {"id": 2}]

    def test_a_late_punctuation_delivers_once(self, orders):
        """Three intervals late, there is one state to deliver."""
        orders.update("7", {"id": 7})
        orders.driver.advance_time(3 * INTERVAL_MS)
        assert delivered(orders) == [{"id": 7}]
        orders.driver.advance_time(3 * INTERVAL_MS)
        assert delivered(orders) == []

    def test_no_conflate_delivers_at_once_and_ends_the_interval(self, orders):
        """The update and all pending ones are delivered; the next update begins a new interval."""
        orders.update("7", {"id": 7, "n": 1})
        orders.driver.advance_time(400)
        orders.update("7", {"id": 7, "n": 2}, no_conflate="true")
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        assert told(sow)["conflated"] == told(delta)["conflated"] == "2"
        assert delivered(orders) == [{"id": 7, "n": 2}]
        orders.update("7", {"id": 7, "n": 3})
        orders.driver.advance_time(INTERVAL_MS - 1)
        assert delivered(orders) == []
        orders.driver.advance_time(1)
        assert delivered(orders) == [{"id": 7, "n": 3}]

    @pytest.mark.parametrize("mark", ["false", "", "TRUE"])
    def test_no_conflate_is_said_with_true(self, orders, mark):
        """An update with another value of `no_conflate` than true waits like others."""
        orders.update("7", {"id": 7}, no_conflate=mark)
        assert delivered(orders) == []

    def test_many_no_conflate_updates_in_a_batch_are_all_delivered(self, orders):
        """Each of several updates with `no_conflate` in a batch is delivered, based on the one before."""
        orders.driver.pipe_batch([orders.record("7", {"id": 7, "n": n}, no_conflate="true") for n in range(3)])
        delta = orders.driver.pending_output("delta")
        assert bodies(delta) == [{"id": 7, "n": 0}, {"id": 7, "n": 1}, {"id": 7, "n": 2}]
        assert [told(record)["version"] for record in delta] == ["1", "2", "3"]
        assert all("delta_base" not in told(record) for record in delta)


class TestDeltas:
    """conflation.md: the paths touched in the interval, with their values at its end."""

    def test_the_example_of_the_specification(self, orders):
        """State and note changed and came back: still sent. Ref never changed: not sent."""
        record = {"id": 7, "state": "open", "note": "-", "ref": 1}
        settle(orders, "7", record)
        orders.update("7", record | {"state": "held"})
        orders.update("7", record | {"state": "held", "note": "x"})
        orders.update("7", record)
        orders.driver.advance_time(INTERVAL_MS)
        assert bodies(orders.driver.pending_output("delta")) == [{"id": 7, "state": "open", "note": "-"}]

    def test_a_sow_record_names_the_paths_that_came_back(self, orders):
        """Its header `touched` has state and note, which two SOW records do not show; a delta has no such header."""
        record = {"id": 7, "state": "open", "note": "-", "ref": 1}
        settle(orders, "7", record)
        orders.update("7", record | {"state": "held", "note": "x", "ref": 2})
        orders.update("7", record | {"ref": 3})
        orders.driver.advance_time(INTERVAL_MS)
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        assert told(sow)["touched"] == '["/state","/note"]'
        assert "touched" not in told(delta)
        settle(orders, "7", record)
        assert "touched" not in told(orders.driver.read_output("sow")[-1])

    def test_a_delivery_at_once_is_the_base_of_what_follows_in_its_batch(self, orders):
        """A delivery at once is unchanged by the next update of its batch, which is based on it."""
        settle(orders, "7", {"id": 7, "a": 1})
        bodies_after = {"id": 7, "a": 2}, {"id": 7, "a": 2, "b": 1}
        orders.driver.pipe_batch([orders.record("7", body, no_conflate="true") for body in bodies_after])
        assert bodies(orders.driver.pending_output("delta")) == [{"id": 7, "a": 2}, {"id": 7, "b": 1}]

    def test_a_path_that_is_gone_is_removed(self, orders):
        """As in every delta, a header of the delta alone lists the pointers of removed paths."""
        settle(orders, "7", {"id": 7, "a": 1, "o": {"x": 1, "y": 1}})
        orders.update("7", {"id": 7, "o": {"x": 1}})
        orders.driver.advance_time(INTERVAL_MS)
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        assert bodies([delta]) == [{"id": 7}]
        assert told(delta)["removed"] == '["/o/y", "/a"]'
        assert "removed" not in told(sow)

    def test_updates_that_change_nothing_are_an_empty_update(self, orders):
        """Updates that change nothing are delivered with the key fields and header `empty`."""
        settle(orders, "7", {"id": 7, "a": 1})
        for _ in range(3):
            orders.update("7", {"id": 7, "a": 1})
        orders.driver.advance_time(INTERVAL_MS)
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        assert bodies([sow, delta]) == [{"id": 7, "a": 1}, {"id": 7}]
        assert told(delta)["empty"] == "true"
        assert "empty" not in told(sow)


class TestDeletes:
    """A delete waits like an update."""

    def test_a_delete_is_delivered_at_the_end_of_the_interval(self, orders):
        """The delivery is a tombstone, and the key fields as delta."""
        settle(orders, "7", {"id": 7, "a": 1})
        orders.update("7", {"id": 7, "a": 2})
        orders.update("7", None)
        orders.driver.advance_time(INTERVAL_MS)
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        assert bodies([sow, delta]) == [None, {"id": 7}]
        assert (
            (told(sow)["kind"], told(sow)["version"])
            == (told(delta)["kind"], told(delta)["version"])
            == ("delete", "3")
        )
        assert told(delta)["delta_base"] == "1"

    def test_a_record_that_came_and_went_is_not_delivered(self, orders):
        """Insert and delete within one interval are only counted, and the input position moves on."""
        orders.update("7", {"id": 7})
        orders.update("7", None)
        orders.driver.advance_time(INTERVAL_MS)
        assert delivered(orders) == []
        assert orders.driver.events == {"never_delivered": 1}
        assert orders.driver.committed_offset == 2

    def test_a_delete_and_an_insert_are_one_update(self, orders):
        """The reader's record becomes the new one; it never sees the delete."""
        settle(orders, "7", {"id": 7, "a": 1, "b": 1})
        orders.update("7", None)
        orders.update("7", {"id": 7, "a": 2})
        orders.driver.advance_time(INTERVAL_MS)
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        assert bodies([sow, delta]) == [{"id": 7, "a": 2}, {"id": 7, "a": 2}]
        assert "kind" not in told(sow)
        assert (told(delta)["removed"], told(delta)["delta_base"], told(delta)["version"]) == ('["/b"]', "1", "3")

    def test_a_key_that_comes_back_later_is_an_insert(self, orders):
        """A deleted key that comes back has kind `insert`, on the delta topic, too."""
        settle(orders, "7", {"id": 7, "a": 1})
        settle(orders, "7", None)
        settle(orders, "7", {"id": 7, "a": 1})
        assert [told(record).get("kind") for record in orders.driver.read_output("delta")] == [
            "insert",
            "delete",
            "insert",
        ]
        assert [told(record)["version"] for record in orders.driver.read_output("delta")] == ["1", "2", "3"]


class TestHeaders:
    """The headers of a delivery about its interval."""

    def test_an_interval_of_one_update_has_the_usual_headers_only(self, orders):
        """An insert of version 1 has no base and no number of updates."""
        begun_ms = orders.driver.now_ms
        orders.update("7", {"id": 7}, trace="t")
        orders.driver.advance_time(INTERVAL_MS)
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        assert sow.headers == delta.headers == [
            ("version", b"1"),
            ("kind", b"insert"),
            ("first_timestamp", b"%d" % begun_ms),
            ("source", b"orders.sow/0/0"),
            ("trace", b"t"),
        ]  # fmt: skip
        assert sow.timestamp_ms == begun_ms + INTERVAL_MS

    def test_an_interval_of_several_has_their_number_first_time_and_base(self, orders):
        """Version, source and own headers are the last update's, the time the first one's, the base the delivered."""
        settle(orders, "7", {"id": 7, "n": 0})
        begun_ms = orders.driver.now_ms
        for n in range(1, 4):
            orders.update("7", {"id": 7, "n": n}, trace=str(n))
            orders.driver.advance_time(100)
        orders.driver.advance_time(INTERVAL_MS)
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        assert told(sow) == {
            "version": "4",
            "conflated": "3",
            "first_timestamp": str(begun_ms),
            "source": "orders.sow/0/3",
            "trace": "3",
        }
        assert told(delta) == told(sow) | {"delta_base": "1"}


class TestMetadata:
    """The headers of a SOW record go onto its copy."""

    def test_correlation_and_end_pass_on(self, orders):
        """The end is on SOW only, as on the underlying topic; both are kept with the state."""
        orders.update("7", {"id": 7}, correlation_id="abc=", expires_at="1234", client="c", sequence="9")
        orders.driver.advance_time(INTERVAL_MS)
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        ours = {name: told(sow).pop(name) for name in ("correlation_id", "client", "sequence")}
        assert ours == {"correlation_id": "abc=", "client": "c", "sequence": "9"}
        assert told(sow) == told(delta) | {"expires_at": "1234"}
        orders.driver.commit()
        kept = orders.driver.state.get_many([b"7"])
        assert kept[b"7"][2:] == (1234, 0, b"", b"")
        orders.driver.crash()
        assert orders.driver.state.get_many([b"7"]) == kept

    def test_an_expiry_is_one_in_the_copy_too(self, orders):
        """An expired record is delivered with kind `expire` and the key fields."""
        settle(orders, "7", {"id": 7, "a": 1})
        orders.update("7", None, kind="expire")
        orders.driver.advance_time(INTERVAL_MS)
        [sow], [delta] = orders.driver.pending_output("sow"), orders.driver.pending_output("delta")
        assert (sow.value, delta.value) == (None, b'{"id":7}')
        assert told(sow)["kind"] == told(delta)["kind"] == "expire"

    @pytest.mark.parametrize("text", ["x", "-1", "1.5", "9223372036854775808", "9" * 5000])
    def test_an_end_that_is_no_time_is_rejected(self, orders, text):
        """An update whose `expires_at` is no time was not written by a worker and is rejected."""
        orders.update("7", {"id": 7}, expires_at=text)
        orders.driver.advance_time(INTERVAL_MS)
        assert [told(record)["dlq_reason"] for record in orders.driver.pending_output("dlq")] == ["bad_header"]


class TestBadInput:
    """Only workers write to a SOW topic; after records of other programs the worker goes on."""

    @pytest.mark.parametrize(
        ("key", "value", "headers", "reason"),
        [
            (None, {"id": 7}, {"version": "1"}, "missing_key"),
            ("7", b"{", {"version": "1"}, "undecodable"),
            ("7", [7], {"version": "1"}, "not_an_object"),
            ("7", {"id": 7}, {}, "bad_header"),
            ("7", {"id": 7}, {"version": "one"}, "bad_header"),
            ("7", {"id": 7}, {"version": b"\xff"}, "bad_header"),
            ("7", None, {"version": "-1"}, "bad_header"),
            ("7", {"id": 7}, {"version": "9223372036854775808"}, "bad_header"),
            ("7", {"id": 7}, {"version": "9" * 5000}, "bad_header"),
        ],
    )
    def test_a_record_that_is_none_of_a_sow_topic_is_rejected(self, orders, key, value, headers, reason):
        """The bad record is rejected, and the pending update of its key is delivered at its time."""
        orders.update("7", {"id": 7, "n": 1})
        orders.driver.pipe_input(key, value, headers | {"no_conflate": "true"})
        assert [told(record)["dlq_reason"] for record in orders.driver.pending_output("dlq")] == [reason]
        assert orders.driver.pending_output("sow") == []
        orders.driver.advance_time(INTERVAL_MS)
        assert delivered(orders) == [{"id": 7, "n": 1}]
        assert orders.driver.committed_offset == 2

    @pytest.mark.parametrize("headers", [{}, {"no_conflate": "true"}])
    @pytest.mark.parametrize("depth", [255, 900])
    def test_a_record_that_cannot_be_encoded_is_rejected_and_the_others_are_delivered(self, orders, depth, headers):
        """A record nested too deep for its message type is rejected when it is due, and does not end the worker."""
        deep = b'{"id":7,"a":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
        orders.driver.pipe_input("7", deep, {"version": "1", **headers})
        orders.update("8", {"id": 8})
        orders.driver.advance_time(INTERVAL_MS)
        assert [told(record)["dlq_reason"] for record in orders.driver.pending_output("dlq")] == ["schema_mismatch"]
        assert delivered(orders) == [{"id": 8}]
        assert orders.driver.committed_offset == 2

    def test_a_partition_full_of_bad_records_is_held(self, orders):
        """The limit of rejections holds the partition, though bad records are noticed only when their keys are due."""
        rubbish = [(str(n), b"{", {"version": "1"}) for n in range(1000)]
        orders.driver.pipe_batch(rubbish)
        orders.driver.advance_time(INTERVAL_MS)
        orders.driver.commit()
        with pytest.raises(PartitionHeld, match=r"1000 of 1000 records in a row were rejected, 1000 as undecodable"):
            orders.driver.pipe_batch(rubbish)

    def test_an_interval_of_which_nothing_is_good_delivers_nothing(self, orders):
        """An interval whose updates are all bad delivers nothing: the record stays delivered as it was."""
        long = "x" * 100_000
        settle(orders, "7", {"id": 7, long: {str(n): n for n in range(50)}})
        orders.update("7", {"id": 7, long: {}})
        orders.driver.advance_time(INTERVAL_MS)
        assert [told(record)["dlq_reason"] for record in orders.driver.pending_output("dlq")] == ["too_large"]
        assert delivered(orders) == []
        orders.update("7", {"id": 7, long: {str(n): n for n in range(50)}, "n": 1})
        orders.driver.advance_time(INTERVAL_MS)
        assert [body["n"] for body in delivered(orders)] == [1]

    def test_a_correlation_id_that_no_store_holds_is_left_out(self, orders):
        """A correlation id longer than a store holds is left out, and the longest one that fits is kept."""
        for n, size in enumerate((65_535, 65_536)):
            orders.update("7", {"id": 7, "n": n}, correlation_id="x" * size)
            orders.driver.advance_time(INTERVAL_MS)
        records = orders.driver.pending_output("sow")
        assert [len(told(record).get("correlation_id", "")) for record in records] == [65_535, 0]
        orders.driver.commit()
        [stored] = orders.driver.state.get_many([b"7"]).values()
        assert encode_record(stored)

    def test_a_publishers_header_that_is_no_text_does_not_keep_a_record_back(self, orders):
        """A publisher's header that is not UTF-8 travels on, under any name."""
        orders.driver.pipe_input("7", {"id": 7}, {"version": "1", "no_conflate": b"\xff"})
        orders.driver.advance_time(INTERVAL_MS)
        assert orders.driver.pending_output("sow")[0].headers[-1] == ("no_conflate", b"\xff")


def test_several_key_fields_are_on_every_delta():
    """A copy has the key fields of its topic, wherever they are in the record."""
    driver = ProcessorTestDriver(
        Conflate,
        ConflatedConfig(underlying="o", interval=1),
        name="c",
        topic=TopicConfig(key=["/a/b", "/c"]),
        underlying="o",
    )
    for n, body in enumerate([{"a": {"b": 1}, "c": 2, "d": 3}, {"a": {"b": 1}, "c": 2, "d": 4}]):
        driver.pipe_input('["1","2"]', body, {"version": str(n + 1)})
        driver.advance_time(1000)
    assert bodies(driver.pending_output("delta"))[-1] == {"a": {"b": 1}, "c": 2, "d": 4}


def test_an_update_with_too_many_removals_is_rejected(orders):
    """The worker goes on and delivers the others; after a delete the key starts again."""
    name = "x" * 3000
    settle(orders, "7", {"id": 7, name: {str(n): 1 for n in range(2000)}})
    orders.update("7", {"id": 7, name: {str(n): 1 for n in range(1000)}})
    orders.update("7", {"id": 7, name: {}})
    orders.update("8", {"id": 8})
    orders.driver.advance_time(INTERVAL_MS)
    [letter] = orders.driver.pending_output("dlq")
    assert told(letter)["dlq_reason"] == "too_large"
    assert delivered(orders) == [{"id": 8}]
    settle(orders, "7", None)
    settle(orders, "7", {"id": 7})
    sow, delta = orders.driver.read_output("sow"), orders.driver.read_output("delta")
    assert replay(seen(delta)) == last_per_key(seen(sow)) == {"7": {"id": 7}, "8": {"id": 8}}
