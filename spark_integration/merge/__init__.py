"""Merging on Spark: the workers' own delta merge, hosted by Spark's tasks in place of a worker."""
