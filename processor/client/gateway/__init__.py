"""The client over a gateway: the same calls, carried by WebSockets instead of Kafka (`Client(gateway=URL)`)."""
