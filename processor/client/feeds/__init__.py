"""What fills a stream of messages: Kafka's records, read in turns."""
