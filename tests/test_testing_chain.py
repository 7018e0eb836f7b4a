"""A chain of processors under test has a topology, partitions, and one set of settings for all topics."""

import pytest

from processor.api import Input, Output, RecordProcessor
from processor.builtin.conflate import Conflate
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.kafka.partitioner import partition_for
from processor.testing import ProcessorTestChain, ProcessorTestDriver


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
