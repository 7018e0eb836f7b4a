"""Consumers: of a group, of a log to its end, of a range of offsets."""
