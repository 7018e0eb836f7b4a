"""The built-in processors, registered and hosted like anybody's, without Kafka and without a store."""
