"""Reads topics with Kafka's own consumer."""

from confluent_kafka import Consumer, TopicPartition


def messages(world, role):
    """All committed records of a topic with value and headers, read by Kafka's own consumer."""
    consumer = Consumer({"bootstrap.servers": world.bootstrap, "group.id": "r", "isolation.level": "read_committed",
                         "enable.partition.eof": True, "auto.offset.reset": "earliest"})  # fmt: skip
    consumer.assign([TopicPartition(f"{world.name}.{role}", number, 0) for number in range(4)])
    records, ended = [], set()
    while len(ended) < 4:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            records.append((message.value(), dict(message.headers() or [])))
    consumer.close()
    return records
