"""The one home of confluent_kafka: everything the rest of Sowstream asks of Kafka.

`properties` are the settings every client gets; `admin` looks at the cluster and its topics; `group_consumer` reads
an input as a member of a consumer group; `log_reader` reads partitions up to their end; `transactional_producer`
writes, exactly once; `partitioner` says which partition a key belongs to; `ceiling` is how fast the bare client is.
"""
