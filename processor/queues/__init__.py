"""Queues over SOW topics (queues.md): who fills them, who consumes them, and the share groups of their consumers.

    worker    `filler` writes each merged record that a queue's filter matches, in the transaction of its SOW record
    consumer  `queue_opening` checks the share group and joins it: for message in client.queue("to_ship")
              `consumer` is the class that users get, `queue_message` one message, with its outcome
              `lease_backlog` decides about each leased message: acknowledge, release, or make it a dead letter
              `stall_guard` frees a partition that Kafka has ceased to hand out (Kafka 4.3.1)
    brokers   `share_groups` has the settings that the groups must have, reads, checks and sets them
              `transport/` is the member of a share group, on kafka-python: until librdkafka has one

The settings of queues are in `processor.config`, their commands in `processor.cli.queue` and `processor.operate`.
Workers import `filler` and `share_groups` alone.
"""
