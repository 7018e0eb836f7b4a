"""The feeds of the client: they read Kafka and produce the messages of a stream."""
