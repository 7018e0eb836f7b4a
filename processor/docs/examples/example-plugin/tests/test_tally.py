"""The processors `tally_source` and `tally`: counts by value over several sources."""

import pytest
from example_plugin.tally import TallySource, ValueTally

from processor.config import TopicConfig
from sowstream.testing import ProcessorTestDriver


class Chain:
    """Two sources and one table of a single partition."""

    def __init__(self) -> None:
        self.sources = [
            ProcessorTestDriver(
                TallySource, {"field": "state"}, name=f"from_{topic}", underlying=topic, outlets={"parts": 1}
            )
            for topic in ("orders", "quotes")
        ]
        self.tally = ProcessorTestDriver(
            ValueTally, {}, name="by_state", topic=TopicConfig(key=("/value",), partitions=1)
        )
        for source in self.sources:
            source.on_commit = lambda sent: [
                self.tally.append_input(record.key, record.value, record.headers) for record in sent["parts@0"]
            ]

    def run(self) -> dict[str, int]:
        """Let all stages read and commit; returns the counts."""
        for source in self.sources:
            source.commit()
        self.tally.feed()
        self.tally.commit()
        last = {record.key: record.value for record in self.tally.read_output("sow")}
        return {
            (key or b"").decode(): int(value.rpartition(b":")[2].rstrip(b"}"))
            for key, value in last.items()
            if value is not None
        }


@pytest.fixture
def chain() -> Chain:
    """Sources and table without records."""
    return Chain()


def test_a_value_is_counted_over_all_sources(chain: Chain) -> None:
    """Records of both topics count, also with the same key; a changed or deleted record leaves its value."""
    orders, quotes = chain.sources
    orders.pipe_input("1", {"state": "new"})
    quotes.pipe_input("1", {"state": "new"})
    assert chain.run() == {"new": 2}
    orders.pipe_input("1", {"state": "paid"})
    assert chain.run() == {"new": 1, "paid": 1}
    quotes.pipe_input("1", None)
    assert chain.run() == {"paid": 1}


def test_a_crash_changes_nothing(chain: Chain) -> None:
    """The table comes back from its topic, also where it is ahead of the records that come again."""
    orders, _ = chain.sources
    orders.pipe_input("1", {"state": "new"})
    orders.pipe_input("2", {"state": "new"})
    orders.commit()
    chain.tally.crash()
    assert chain.run() == {"new": 2}
    chain.tally.crash()
    orders.pipe_input("2", {"state": "paid"})
    assert chain.run() == {"new": 1, "paid": 1}
