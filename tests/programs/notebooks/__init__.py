"""Runs the notebooks of spark_integration on a real Kafka with a feed of orders."""
