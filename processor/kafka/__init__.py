"""The one home of confluent_kafka: everything that the rest of Sowstream asks of Kafka.

`properties` has the settings of every client and `errors` maps librdkafka's errors to ours. `admin` asks the cluster
about topics, groups and offsets; `readers` has the consumers, `producers` the producers. `message` reads
confluent_kafka's messages, `partitioner` computes the partition of a key. `python_client` has the settings of
kafka-python, for requests that librdkafka does not have.
`outage`, `renewal`, `refusals`, `log_filter` and `pause_detector` watch over the clients, and `background_calls` keeps
a hanging call from stopping its caller.
"""
