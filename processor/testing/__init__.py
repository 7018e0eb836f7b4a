"""Runs processors without Kafka, on a clock that stands still: for the tests of a plug-in's author.

`ProcessorTestDriver` runs one partition of one processor, after Kafka Streams' TopologyTestDriver::

    driver = ProcessorTestDriver(Count, {}, name="visits")
    driver.pipe_input("7", {"id": 7})
    driver.commit()
    [record] = driver.read_output("sow")
    assert record.value == b'{"count":1}'

`ProcessorTestChain` runs several processors with all partitions: the output of one is the input of the next.

Task, context and state are the runtime's own. Only Kafka is simulated, with all that it does to a processor: a
transaction may roll back, the process may die, and both times records come again. At each commit the driver compares
the state with the SOW records, and fails where a crash would change it.
"""

from processor.testing.chain import ProcessorTestChain
from processor.testing.driver import GivenHeaders, ProcessorTestDriver

__all__ = ["GivenHeaders", "ProcessorTestChain", "ProcessorTestDriver"]
