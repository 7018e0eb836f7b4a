"""Transactions that Kafka leaves open, on a real broker whose disk was brought into that state."""
