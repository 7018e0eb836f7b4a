"""Finds transactions that Kafka ended in its books but left open in a partition (KAFKA-20734), and ends them."""
