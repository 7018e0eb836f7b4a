"""The conflated topic under load: bursts, limits, backlogs, and its metrics."""

import tracemalloc

import pytest

from processor.builtin.conflate.conflate import DELIVERED_MAX, NOTE_BYTES_MAX, ReplayGuard
from processor.record import Record
from processor.store.memory import MemoryStore
from tests.builtin.conflate.underlying import INTERVAL_MS, Underlying
from tests.builtin.merging import bodies, seen, told
from tests.endtoend.oracle import last_per_key, replay


def burst(orders, keys, **body):
    """One update of each of so many keys, at once."""
    orders.driver.pipe_batch([orders.record(str(n), {"id": n, **body}) for n in range(keys)])


class TestBursts:
    """Many keys whose intervals end at the same moment."""

    def test_a_burst_is_delivered_in_pieces(self):
        """Input and commits have their turn in between; the first to come is the first to go."""
        orders = Underlying()
        burst(orders, 2 * DELIVERED_MAX + 1)
        orders.driver.advance_time(INTERVAL_MS, punctuations_max=1)
        sizes = []
        for _ in range(4):
            sizes.append(len(orders.driver.pending_output("sow")))
            orders.driver.commit()
            orders.driver.advance_time(0, punctuations_max=1)
        assert sizes == [DELIVERED_MAX, DELIVERED_MAX, 1, 0]
        assert [body["id"] for body in bodies(orders.driver.read_output("sow"))] == list(range(2 * DELIVERED_MAX + 1))

    def test_a_burst_waits_for_nothing_between_its_pieces(self):
        """After each piece of a burst the processor reports more work, and is called again at once."""
        orders = Underlying()
        burst(orders, 2 * DELIVERED_MAX + 1)
        orders.driver.advance_time(INTERVAL_MS)
        assert len(orders.driver.pending_output("sow")) == 2 * DELIVERED_MAX + 1

    def test_an_update_that_comes_between_the_pieces_joins_its_key(self):
        """It is still one delivery, of the newer state."""
        orders = Underlying()
        burst(orders, DELIVERED_MAX + 1)
        orders.driver.advance_time(INTERVAL_MS, punctuations_max=1)
        orders.update(str(DELIVERED_MAX), {"id": DELIVERED_MAX, "n": 1})
        orders.driver.advance_time(0)
        assert bodies(orders.driver.pending_output("sow"))[-1] == {"id": DELIVERED_MAX, "n": 1}
        orders.driver.advance_time(10 * INTERVAL_MS)
        assert len(orders.driver.pending_output("sow")) == DELIVERED_MAX + 1

    @pytest.mark.parametrize("updates", [31, 32, 33, 64, 200])
    def test_many_updates_of_a_key_are_one_delivery(self, updates):
        """Also those that were looked at early, so that they need not all be kept."""
        orders = Underlying()
        orders.update("7", {"id": 7, "n": -1, "back": 0, "still": 1})
        orders.driver.advance_time(INTERVAL_MS)
        for n in range(updates):
            orders.update("7", {"id": 7, "n": n, "back": n % updates, "still": 1})
        orders.update("7", {"id": 7, "n": updates, "back": 0, "still": 1})
        orders.driver.advance_time(INTERVAL_MS)
        delta = orders.driver.pending_output("delta")[-1]
        assert bodies([delta]) == [{"id": 7, "n": updates, "back": 0}]
        assert told(delta)["conflated"] == str(updates + 1)


class TestLimits:
    """With too many pending updates keys are delivered early, and counted."""

    def test_too_many_keys_deliver_the_oldest_early(self):
        """No update is dropped; the others wait as before."""
        orders = Underlying(max_pending=3)
        burst(orders, 5)
        assert [body["id"] for body in bodies(orders.driver.pending_output("sow"))] == [0, 1]
        orders.driver.commit()
        assert orders.driver.events["delivered_early"] == 2
        assert orders.driver.committed_offset == 2
        orders.driver.advance_time(INTERVAL_MS)
        assert len(orders.driver.pending_output("sow")) == 5 - 2

    def test_too_much_memory_delivers_the_oldest_early(self):
        """A few keys with large records overflow the memory limit, and the oldest is delivered early."""
        orders = Underlying(max_pending_bytes=10_000)
        burst(orders, 5, text="x" * 3000)
        assert [body["id"] for body in bodies(orders.driver.pending_output("sow"))] == [0, 1, 2]
        orders.driver.advance_time(1)
        assert 6000 < orders.driver.gauges["pending_bytes"] < 10_000

    def test_large_headers_count(self):
        """Headers that travel on with the updates take memory, too: keys with large ones are delivered early."""
        orders = Underlying(max_pending_bytes=100_000)
        orders.driver.pipe_batch([orders.record(f"{n}", {"id": n}, trace="x" * 30_000) for n in range(5)])
        assert [body["id"] for body in bodies(orders.driver.pending_output("sow"))] == [0, 1, 2]
        orders.driver.commit()
        assert orders.driver.events["delivered_early"] == 3
        orders.driver.advance_time(1)
        assert 60_000 < orders.driver.gauges["pending_bytes"] < 65_000

    def test_superseded_updates_are_dropped_before_any_key_is_delivered_early(self):
        """Keys wait, not updates: a fast feed of few keys keeps its intervals, however much it brings in one."""
        orders = Underlying(max_pending_bytes=100_000)
        for turn in range(10):
            updates = [orders.record(str(n), {"id": n, "turn": turn, "text": "x" * 3000}) for n in range(20)]
            orders.driver.pipe_batch(updates)
        assert orders.driver.pending_output("sow") == []
        orders.driver.advance_time(INTERVAL_MS)
        assert [told(record)["conflated"] for record in orders.driver.pending_output("sow")] == ["10"] * 20
        assert orders.driver.gauges["pending_bytes"] == 0
        orders.driver.commit()
        assert orders.driver.events == {"folded": 200, "delivered": 20}

    def test_large_updates_are_not_all_parsed_at_once(self):
        """Parsed they take ten times as much: it must not be the more, the more of them wait."""
        orders = Underlying()
        record = {"id": 7} | {f"field {n}": {"n": n} for n in range(10_000)}
        for n in range(31):
            orders.update("7", record | {"n": n})
        tracemalloc.start()
        try:
            orders.driver.advance_time(INTERVAL_MS)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        [delivery] = orders.driver.pending_output("sow")
        assert peak_bytes < 100 * len(delivery.value)
        assert (bodies([delivery]), told(delivery)["conflated"]) == ([record | {"n": 30}], "31")

    def test_updates_of_one_key_take_no_more_than_a_few(self):
        """The thousandth waits in the place of those before."""
        orders = Underlying(max_pending_bytes=300_000)
        for n in range(1000):
            orders.update("7", {"id": 7, "n": n, "text": "x" * 3000})
        assert orders.driver.pending_output("sow") == []
        orders.driver.advance_time(INTERVAL_MS)
        [delivery] = orders.driver.pending_output("sow")
        assert told(delivery)["conflated"] == "1000"


class TestBacklog:
    """A reader far behind its input."""

    @pytest.mark.parametrize("age_ms", [0, 11_000, 60_000, 3_600_000, -3_600_000])
    def test_a_fixed_interval_stays_as_it_is_however_old_the_input_is(self, age_ms):
        """A key that is updated every half interval is delivered once an interval, also while its input is old."""
        orders = Underlying()
        driver = orders.driver
        for n in range(40):
            driver.input.append(
                Record(b"7", b'{"id":7,"n":%d}' % n, [("version", b"%d" % (n + 1))], n, driver.now_ms - age_ms + n)
            )
        due_ms, lateness = [], []
        for n in range(40):
            driver.feed(1)
            driver.advance_time(INTERVAL_MS // 2)
            for body in bodies(driver.pending_output("sow")):
                due_ms.append((n + 1) * INTERVAL_MS // 2)
                lateness.append(n - body["n"])
            driver.commit()
        assert due_ms == list(range(INTERVAL_MS, 20 * INTERVAL_MS + 1, INTERVAL_MS))
        assert set(lateness) == {0}, "the last update that was read is the one delivered"

    def test_auto_lengthens_the_interval_behind_and_shortens_it_at_the_end(self):
        """With `interval: auto` the metric shows an interval that grows behind the input and shrinks at its end."""
        orders = Underlying(interval="auto", floor="100ms", ceiling="2s")
        driver = orders.driver
        assert "interval_seconds" not in driver.gauges
        for n in range(60):
            driver.input.append(Record(b"7", b"{}", [("version", b"1")], n, driver.now_ms - 5000 + 100 * n))
        for _ in range(59):
            driver.feed(1)
            driver.advance_time(100)
        assert driver.gauges["interval_seconds"] == 2
        driver.feed()
        for _ in range(300):
            driver.advance_time(100)
        assert driver.gauges["interval_seconds"] == 0.1


class TestClock:
    """The wall clock is set by people."""

    def test_a_clock_set_back_delays_nothing(self):
        """After a clock is set back an hour, a key waits for the rest of its interval only."""
        orders = Underlying()
        orders.update("7", {"id": 7})
        orders.driver.advance_time(600)
        orders.driver.advance_time(-3_600_000)
        orders.driver.advance_time(399)
        assert orders.driver.pending_output("sow") == []
        orders.driver.advance_time(1)
        assert bodies(orders.driver.pending_output("sow")) == [{"id": 7}]


class TestMetrics:
    """The metrics of pending updates that an operator sees."""

    def test_the_window_tells_how_much_waits_and_how_long(self):
        """As gauges, each time the clock is looked at."""
        orders = Underlying()
        burst(orders, 3)
        orders.driver.advance_time(400)
        gauges = orders.driver.gauges
        assert (gauges["pending_keys"], gauges["oldest_pending_seconds"], gauges["interval_seconds"]) == (3, 0.4, 1)
        orders.driver.advance_time(600)
        gauges = orders.driver.gauges
        assert (gauges["pending_keys"], gauges["pending_bytes"], gauges["oldest_pending_seconds"]) == (0, 0, 0)

    def test_the_ratio_is_that_of_updates_to_deliveries(self):
        """The counters of folded updates and delivered keys give the ratio of conflation."""
        orders = Underlying()
        for n in range(6):
            orders.update(str(n % 2), {"id": n % 2, "n": n})
        orders.driver.advance_time(INTERVAL_MS)
        orders.driver.commit()
        assert orders.driver.events == {"folded": 6, "delivered": 2}

    def test_lateness_counts_from_the_end_of_the_interval(self):
        """Once for each key that was delivered."""
        orders = Underlying()
        burst(orders, 3)
        orders.driver.advance_time(INTERVAL_MS + 30)
        orders.driver.commit()
        lateness = orders.driver.observed["lateness"]
        assert (lateness.times, lateness.seconds) == (3, pytest.approx(0.09))


class TestNotes:
    """The note for a successor about the input between the committed position and the last record read."""

    def test_a_note_has_the_end_and_the_rejected_records(self):
        """A successor reads the end of the seen input and the rejected records from the note."""
        seen_before = ReplayGuard("")
        seen_before.took([Record(b"k", None, None, 41, 0)])
        seen_before.rejected |= {7, 40, 12}
        note = seen_before.note(10)
        assert note == "seen at least 42 rejected 2 30"
        successor = ReplayGuard(note)
        assert (successor.until, successor.rejected, successor.is_noted, successor.is_exact) == (
            42,
            {12, 40},
            True,
            False,
        )
        successor.is_exact = True
        assert ReplayGuard(successor.note(10)).is_exact

    def test_a_note_stays_short(self):
        """It names the newest rejections; older ones may be made again."""
        noting = ReplayGuard("")
        noting.took([Record(b"k", None, None, 10**18, 0)])
        noting.rejected |= set(range(0, 10**18, 10**15))
        note = noting.note(0)
        assert NOTE_BYTES_MAX - 20 < len(note) <= NOTE_BYTES_MAX
        assert ReplayGuard(note).rejected == set(sorted(noting.rejected)[-len(ReplayGuard(note).rejected) :])

    @pytest.mark.parametrize("foreign", ["", "sow 1 mark 2", "seen", "seen x", "seen 1 rejected", "seen 1 rejected a"])
    def test_a_text_of_another_tool_is_no_note(self, foreign):
        """Kafka's tools set offsets without a note: then every record is compared with its copy."""
        assert not ReplayGuard(foreign).is_noted
        records = [Record(b"k", None, None, 5, 0)]
        assert ReplayGuard(foreign).parted(records) == (records, [])

    def test_a_note_keeps_the_rejections_that_come_again_while_nothing_waits(self):
        """Rejections before the place that was read again are dropped from the note, later ones are kept."""
        successor = ReplayGuard("seen 42 rejected 2 30")
        successor.took([Record(b"k", None, None, 20, 0)])
        assert successor.note(None) == "seen 42 rejected 2"

    def test_a_slow_successor_rejects_no_record_again(self):
        """It may read in pieces, and have nothing that waits in between."""
        orders = Underlying()
        orders.driver.pipe_batch([("1", b"{", {"version": "1"}), (None, b"{}", {"version": "1"})])
        orders.driver.pipe_input("1", b"{", {"version": "2", "no_conflate": "true"})
        orders.driver.commit()
        assert (orders.driver.committed_offset, orders.driver.noted) == (0, "seen at least 3 rejected 1 2 3")
        orders.driver.crash(feed=False)
        orders.driver.feed(1)
        orders.driver.feed()
        orders.driver.commit()
        assert [record.key for record in orders.driver.read_output("dlq")] == [None, b"1", b"1"]

    @pytest.mark.parametrize("read", [None, 3])
    def test_offsets_set_back_by_hand_deliver_nothing_twice(self, read):
        """The copy's states know where they came from, also without a note; and a successor on the way knows that."""
        orders = Underlying()
        for n in range(9):
            orders.update(str(n % 3), {"id": n % 3, "n": n // 3}, no_conflate="true")
        orders.driver.commit()
        orders.driver._begin(MemoryStore(), 0)
        orders.driver.feed(read)
        orders.driver.advance_time(INTERVAL_MS)
        orders.driver.commit()
        orders.driver.crash()
        orders.driver.advance_time(INTERVAL_MS)
        orders.driver.commit()
        sow = orders.driver.read_output("sow")
        assert len(sow) == 9
        assert last_per_key(seen(sow)) == replay(seen(orders.driver.read_output("delta")))
        assert orders.driver.events["already_delivered"] == 9
