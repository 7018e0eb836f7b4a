"""The one home of confluent_kafka: everything that the rest of Sowstream asks of Kafka.

`properties` has the settings of every client and `errors` maps librdkafka's errors to ours. `admin` asks the cluster
about topics, groups and offsets; `clients` has the consumers and producers. `message` reads confluent_kafka's messages,
`partitioner` computes the partition of a key. `outage` watches over the clients, `connection_probe` and
`connection_faults` find the reason of a failed connection, and `background_calls` keeps a hanging call from stopping
its caller. `message_reader` is the base of subscriptions and queues, with their three ways to be read. `python_client`
has the settings of kafka-python, for requests that librdkafka does not have.
"""
