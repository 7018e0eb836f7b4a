"""Moves the merge of a topic from its workers to Spark and back, one command at a time."""
