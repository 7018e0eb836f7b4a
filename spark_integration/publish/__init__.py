"""Publishes DataFrames as commands of a topic; workers drop the records that Spark writes twice."""
