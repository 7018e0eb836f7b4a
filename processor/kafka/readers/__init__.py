"""Consumers: a member of a group, a reader of partitions to their end, a reader of ranges of offsets."""
