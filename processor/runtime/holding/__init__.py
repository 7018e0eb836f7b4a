"""Held partitions: what cannot go on, why, and the record at fault."""
