"""Standbys: copies of partitions that other workers own."""
