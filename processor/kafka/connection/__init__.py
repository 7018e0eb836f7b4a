"""Finds and names the reason for which a client gets no connection to a broker.

librdkafka reports one error for all of them, "Broker transport failure", and the reason in its log only. `fault_log`
collects the log lines of a client, `fault` knows their meaning and the remedy, and `probe` looks at an address itself,
with sockets and TLS but without Kafka's protocol, where several reasons share a line.
"""

from processor.kafka.connection.fault import Fault, fault_in
from processor.kafka.connection.fault_log import FaultLog, addresses_of
from processor.kafka.connection.probe import Step, explain, steps

__all__ = ["Fault", "FaultLog", "Step", "addresses_of", "explain", "fault_in", "steps"]
