"""Consumers of queues (queues.md, rules 3 to 6): `for message in client.queue("to_ship")`.

`queue` is the class that users get: a stream of messages that is iterated over, called back or awaited. `backlog` has
the messages that are leased to this consumer, and decides about each: acknowledge, release, or make it a dead letter.
`message` is one of them, `dead_letters` writes those that are not to be delivered again. `opening` joins the
share group, and `stall_guard` looks after it while no message comes, through `share_group_view`. `metrics` shows the
figures of a consumer to Prometheus. Kafka is in `processor.kafka.share_member`; the settings of the share group are in
`processor.topics.share_group`.
"""

from processor.client.queue.message import QueueMessage
from processor.client.queue.metrics import QueueMetrics
from processor.client.queue.queue import Queue

__all__ = ["Queue", "QueueMessage", "QueueMetrics"]
