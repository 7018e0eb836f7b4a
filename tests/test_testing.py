"""The test driver behaves like Kafka."""

import pytest

from processor.api import Input, Output, Processor, RecordProcessor
from processor.builtin.conflate import Conflate
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec import load_codec
from processor.config import TopicConfig
from processor.errors import ConfigurationError
from processor.kafka.partitioner import partition_for
from processor.record import Record, Stored
from processor.testing import ProcessorTestChain, ProcessorTestDriver


@pytest.fixture
def driver() -> ProcessorTestDriver:
    """A delta merge without records."""
    return ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders")


def test_the_driver_merges_a_published_record(driver):
    """A published record is in SOW after the commit."""
    driver.pipe_input("7", {"id": 7, "qty": 1})
    driver.commit()
    [record] = driver.read_output("sow")
    assert record.value == b'{"id":7,"qty":1}'


def test_outputs_are_visible_after_their_commit(driver):
    """Outputs are pending until their commit; those of a rollback never appear, though their offsets are used up."""
    driver.pipe_input("7", {"id": 7})
    assert (driver.read_output("sow"), len(driver.pending_output("sow"))) == ([], 1)
    driver.abort(feed=False)
    assert driver.pending_output("sow") == []
    driver.feed()
    driver.commit()
    assert [record.offset for record in driver.read_output("sow")] == [2]
    assert driver.pending_output("sow") == []


def test_keys_values_and_headers_are_passed_unchanged(driver):
    """Text becomes UTF-8, values are encoded by the codec, bytes and None stay, and the clock sets the time."""
    driver.pipe_batch(
        [("ä", {"a": 1}, {"command": "publish"}), (b"\xff", b"{", [("n", b"\xff"), ("n", None)]), (None, None, None)]
    )
    assert driver.input == [
        Record("ä".encode(), b'{"a":1}', [("command", b"publish")], 0, driver.now_ms),
        Record(b"\xff", b"{", [("n", b"\xff"), ("n", None)], 1, driver.now_ms),
        Record(None, None, None, 2, driver.now_ms),
    ]


@pytest.mark.parametrize("keep_store", [True, False])
def test_a_crash_leaves_the_topics_and_the_written_states(driver, keep_store):
    """A crash loses memory and committed states that were not written; the SOW topic restores all of them."""
    for qty in range(4):
        driver.pipe_input("7", {"id": 7, "qty": qty})
        driver.commit()
        if qty == 1:
            driver.write()
    driver.pipe_input("7", {"id": 7, "qty": 4})
    driver.crash(keep_store=keep_store, feed=False)
    assert driver.state.get_many([b"7"]) == {b"7": Stored(4, b'{"id":7,"qty":3}')}
    assert driver.committed_offset == 4
    driver.feed()
    assert driver.state.get_many([b"7"]) == {b"7": Stored(5, b'{"id":7,"qty":4}')}


def test_feed_delivers_at_most_the_requested_records(driver):
    """`feed` delivers at most the requested number of records, and the others wait."""
    driver.pipe_batch([(str(n), {"id": n}, None) for n in range(5)])
    driver.abort(feed=False)
    driver.feed(2)
    assert [record.key for record in driver.pending_output("sow")] == [b"0", b"1"]
    driver.feed(2)
    driver.feed()
    assert len(driver.pending_output("sow")) == 5


def test_settings_are_those_of_the_plug_in():
    """A mapping is validated by the plug-in's settings model, with the errors of a settings file."""
    ProcessorTestDriver(Conflate, {"underlying": "orders", "interval": "1s"}, name="c", underlying="orders")
    with pytest.raises(ConfigurationError, match=r"c\.underlaying: there is no setting .*did you mean 'underlying'"):
        ProcessorTestDriver(Conflate, {"underlaying": "orders"}, name="c")


def test_a_misspelt_output_is_an_error_that_names_the_right_one(driver):
    """An output that the processor does not declare is refused, and not taken for an empty one."""
    for read in (driver.read_output, driver.pending_output):
        with pytest.raises(LookupError, match="there is no output 'sows'; did you mean 'sow'"):
            read("sows")


def test_a_closed_driver_accepts_no_call(driver):
    """A closed driver has ended its task, as at the end of a worker, and accepts no call."""
    driver.close()
    with pytest.raises(AssertionError, match="rewind is no move of a task that is closed"):
        driver.abort()


class Marker(RecordProcessor):
    """A processor that marks each key with its last value."""

    input = Input("publish", from_underlying=False)
    outputs = (Output("sow"), Output("mark"))

    def process_record(self, record):
        """Mark the key with the value."""
        self.context.marks.put(record.key, record.value)


def test_marks_are_sent_with_the_commit_and_restored_from_their_topic():
    """The topic has the last value of each mark; a rollback or a crash brings the committed values back."""
    driver = ProcessorTestDriver(Marker, {}, name="orders")
    driver.pipe_batch([("a", b"1", None), ("b", b"1", None), ("a", b"2", None)])
    driver.commit()
    assert [(record.key, record.value) for record in driver.read_output("mark")] == [(b"a", b"2"), (b"b", b"1")]
    driver.pipe_input("a", b"3")
    assert driver.marks.get(b"a") == b"3"
    driver.abort(feed=False)
    assert driver.marks.get(b"a") == b"2"
    driver.crash(feed=False)
    assert (driver.marks.get(b"a"), driver.marks.get(b"b"), driver.marks.get(b"c")) == (b"2", b"1", None)
    driver.feed()
    driver.commit()
    assert [record.value for record in driver.read_output("mark")] == [b"2", b"1", b"3"]


def test_marks_that_are_not_declared_are_an_error():
    """The driver's error names the processor and the missing role."""
    driver = ProcessorTestDriver(Conflate, {"underlying": "o", "interval": "1s"}, name="c", underlying="o")
    with pytest.raises(LookupError, match="Conflate declares no output of role 'mark'"):
        driver.marks.get(b"a")


class Looking(RecordProcessor):
    """Notes the clock, the stream time and the end of the input in each call."""

    input = Input("publish")
    outputs = (Output("delta"),)

    def setup(self, settings):
        """Look."""
        self.looks = []
        self.look()

    def process_record(self, record):
        """Look."""
        self.look()

    def punctuate(self, now_ms):
        """Look."""
        self.look()

    def look(self):
        """Note the three."""
        context = self.context
        began_ms = 1_700_000_000_000
        seen_ms = context.stream_time_ms and context.stream_time_ms - began_ms
        self.looks.append((context.now_ms - began_ms, seen_ms, context.is_at_end))


def test_stream_time_is_behind_the_clock_as_in_a_worker():
    """It is that of the last record, or behind the clock by a second; records that wait may renew a due record."""
    driver = ProcessorTestDriver(Looking, {}, name="looks")
    driver.advance_time(3_000)
    driver.pipe_input("a", {})
    driver.advance_time(400)
    driver.pipe_input("a", {}, timestamp_ms=driver.now_ms - 700)
    driver.advance_time(0)
    driver.advance_time(5_000)
    assert driver._task.processor.looks == [
        (0, 0, False),
        (3_000, 2_000, True),
        (3_000, 3_000, False),
        (3_400, 3_000, True),
        (3_400, 2_700, False),
        (3_400, 2_700, True),
        (8_400, 7_400, True),
    ]
    driver.crash(feed=False)
    driver.advance_time(1_000)
    driver.feed(1)
    driver.advance_time(1_000)
    driver.feed()
    driver.advance_time(1_000)
    assert driver._task.processor.looks == [
        (8_400, 0, False),
        (9_400, 0, False),
        (9_400, 3_000, False),
        (10_400, 3_000, False),
        (10_400, 2_700, False),
        (11_400, 10_400, True),
    ]


@pytest.mark.parametrize(("behind_ms", "expired"), [(1_000, [False, True]), (0, [True, True])])
def test_a_record_expires_when_the_stream_time_has_come(behind_ms, expired):
    """A test advances the clock by the time to live and a second more; without a distance the first is enough."""
    chain = ProcessorTestChain(TopicConfig(partitions=1, expiration=60), behind_ms=behind_ms)
    chain.add(DeltaMerge, name="orders")
    chain.pipe_input("orders", "7", {"id": 7})
    seen = []
    for ms in (60_000, 1_000):
        chain.advance_time(ms)
        chain.commit()
        seen.append(chain.read_output("orders", "sow")[-1].value is None)
    assert seen == expired


def test_a_record_of_a_chain_may_have_a_timestamp_of_its_own(chain):
    """A record may be of any time, as one that waited in Kafka."""
    chain.pipe_input("orders", "7", {"id": 7}, partition=2, timestamp_ms=5)
    assert [record.timestamp_ms for record in chain.driver("orders", 2).input] == [5]


class Counter(Processor):
    """A processor that sums values, commits the sum as its note, and does its work in pieces at each punctuation."""

    input = Input("publish", from_underlying=False)
    outputs = (Output("sow"),)

    def init(self, context, settings):
        """Resume from the committed note."""
        self.context, self.sum, self.left = context, int(context.noted or 0), 0

    def process(self, records):
        """Add the values, hold the sum as the note, and leave a piece of work for each."""
        for record in records:
            self.sum += int(record.value)
            self.left += 1
            self.context.observe("seen", 0.5, 2)
        self.context.gauge("left", self.left)
        self.context.hold(None, str(self.sum))

    def punctuate(self, now_ms):
        """Do one piece of work."""
        self.left = max(0, self.left - 1)
        self.context.forward("sow", b"left", b"%d" % self.left, [("version", b"1")])
        self.context.gauge("left", self.left)
        return self.left > 0


@pytest.fixture
def counter() -> ProcessorTestDriver:
    """A driver that received 1, 2 and 4, and committed 1 and 2."""
    driver = ProcessorTestDriver(Counter, {}, name="sums", topic=TopicConfig(partitions=1))
    driver.pipe_batch([(None, b"1", None), (None, b"2", None)])
    driver.commit()
    driver.pipe_input(None, b"4")
    return driver


@pytest.mark.parametrize("calamity", ["abort", "crash"])
def test_the_next_processor_has_the_note_of_the_last_commit(counter, calamity):
    """The note of a transaction that was rolled back is discarded; otherwise 4 would have been added twice."""
    assert (counter._task.processor.sum, counter.noted) == (7, "3")
    getattr(counter, calamity)(feed=False)
    assert (counter._task.processor.sum, counter.noted) == (3, "3")
    getattr(counter, calamity)()
    counter.commit()
    assert counter.noted == "7"


def test_settings_that_the_plug_in_refuses_are_refused():
    """The driver calls `check` before anything begins, as a worker does, with the message type of the input."""

    class Fussy(Count):
        """Refuses every message type."""

        @classmethod
        def check(cls, name, settings, codec):
            """Refuse it."""
            raise ConfigurationError(f"{name}: no {type(codec).__name__}")

        def setup(self, settings):
            """Begin never."""
            raise AssertionError("it has begun")

    with pytest.raises(ConfigurationError, match="copies: no BinaryCodec"):
        ProcessorTestDriver(Fussy, {}, name="copies", underlying="orders", input_codec=load_codec("binary"))


def test_a_timing_counts_when_it_is_committed(counter):
    """Timings count with the commit, as events do; a gauge changes at once, and starts again with a new processor."""
    assert counter.gauges == {"left": 3}
    counter.abort(feed=False)
    assert counter.gauges == {}
    counter.feed()
    assert counter.gauges == {"left": 1}
    assert (counter.observed["seen"].times, counter.observed["seen"].seconds) == (4, 2.0)
    counter.commit()
    assert (counter.observed["seen"].times, counter.observed["seen"].seconds) == (6, 3.0)


def test_the_driver_punctuates_again_while_there_is_more_to_do(counter):
    """The driver punctuates again while work is left; `punctuations_max` limits the repetition."""
    counter.advance_time(1, punctuations_max=1)
    assert counter.gauges == {"left": 2}
    counter.advance_time(1)
    assert counter.gauges == {"left": 0}
    assert [record.value for record in counter.pending_output("sow")] == [b"2", b"1", b"0"]


class Count(RecordProcessor):
    """A processor that counts the records of each key, and alerts at the third."""

    input = Input("sow", from_underlying=True)
    outputs = (Output("sow"), Output("delta"), Output("alerts"))

    def process_record(self, record):
        """Count one record."""
        count = (self.get(record.key) or {"count": 0})["count"] + 1
        self.put(record.key, {"count": count})
        if count == 3:
            self.forward("alerts", record.key, {"count": count})


@pytest.fixture
def chain():
    """A chain of orders, a count of their updates, and a conflated topic of the counts, in four partitions."""
    chain = ProcessorTestChain(TopicConfig(partitions=4))
    chain.add(DeltaMerge, name="orders")
    chain.add(Count, name="updates", underlying="orders")
    chain.add(Conflate, {"underlying": "updates", "interval": "1s"}, name="slow", underlying="updates")
    return chain


def test_a_commit_goes_down_the_chain(chain):
    """A commit of the chain gives each processor the committed records of the previous one."""
    for qty in range(3):
        chain.pipe_input("orders", "7", {"id": 7, "qty": qty})
    chain.commit()
    assert [record.value for record in chain.read_output("updates", "alerts")] == [b'{"count":3}']
    chain.advance_time(2_000)
    chain.commit()
    assert [record.value for record in chain.read_output("slow", "sow")] == [b'{"count":3}']


def test_uncommitted_records_reach_no_other_processor(chain):
    """Uncommitted records reach no other processor, as on Kafka."""
    chain.pipe_input("orders", "7", {"id": 7})
    partition = partition_for(b"7", 4)
    assert chain.driver("updates", partition).input == []
    chain.driver("orders", partition).abort(feed=False)
    chain.driver("orders", partition).feed()
    chain.commit()
    assert len(chain.driver("updates", partition).input) == 1


def test_a_key_stays_in_its_partition_all_along(chain):
    """The key's hash chooses the input partition, and outputs have the same partition number."""
    for number in range(20):
        chain.pipe_input("orders", str(number), {"id": number})
    chain.commit()
    assert len({partition_for(str(number).encode(), 4) for number in range(20)}) == 4
    for partition in range(4):
        keys = {record.key for record in chain.driver("updates", partition).read_output("sow")}
        assert keys == {
            str(number).encode() for number in range(20) if partition_for(str(number).encode(), 4) == partition
        }
    assert len(chain.read_output("updates", "sow")) == 20


def test_a_record_without_a_key_goes_to_the_partition_of_its_key(chain):
    """A repartitioned output is fed to the input partition that the key's hash chooses."""
    for partition in range(4):
        chain.pipe_input("orders", None, {"id": 7}, partition=partition)
    chain.commit()
    home = partition_for(b"7", 4)
    assert [len(chain.driver("orders", number).read_output("sow")) for number in range(4)] == [
        4 if number == home else 0 for number in range(4)
    ]


def test_a_crash_of_all_processes_changes_nothing(chain):
    """States, notes and positions of all processes are restored from the topics after a crash."""
    for qty in range(2):
        chain.pipe_input("orders", "7", {"id": 7, "qty": qty})
    chain.commit()
    chain.crash()
    chain.pipe_input("orders", "7", {"id": 7, "qty": 9})
    chain.advance_time(2_000)
    chain.commit()
    assert [record.value for record in chain.read_output("updates", "alerts")] == [b'{"count":3}']


def test_a_chain_reports_duplicate_and_missing_names(chain):
    """A duplicate name and a missing underlying family are errors with a sentence."""
    with pytest.raises(ValueError, match="the chain has a processor 'orders'"):
        chain.add(DeltaMerge, name="orders")
    with pytest.raises(ValueError, match="the chain has no processor 'order' under 'more'; add it first"):
        chain.add(Count, name="more", underlying="order")


def test_the_settings_of_a_topic_are_shared():
    """The processor and the context have the same settings, in the driver and in a chain."""
    topic = TopicConfig(key=("/symbol",), partitions=1)
    chain = ProcessorTestChain(topic)
    chain.add(DeltaMerge, name="prices")
    assert chain.driver("prices").pipeline.settings is chain.driver("prices").pipeline.topic is topic
    driver = ProcessorTestDriver(DeltaMerge, topic, name="prices")
    assert driver.pipeline.settings is driver.pipeline.topic is topic
