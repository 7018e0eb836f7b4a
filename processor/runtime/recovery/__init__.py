"""Restores: local state brought back from Kafka, and the directories it lies in."""
