"""Fills the queues over a SOW topic (queues.md, rules 1 and 2).

`filler` writes each merged record that a queue's filter matches to the queue's topic. It is used by `DeltaMerge` at the
end of a batch, whichever way the batch was merged, so the messages are in the transaction of the SOW records.
`selection` compiles the filters. Consumers are in `processor.client.queue`, the rules of share groups in
`processor.topics.share_group`.
"""

from processor.builtin.queue.filler import QueueFiller
from processor.builtin.queue.selection import check_queue

__all__ = ["QueueFiller", "check_queue"]
