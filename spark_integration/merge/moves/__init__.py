"""Moves the merge of a topic from its workers to Spark and back, and checks or rebuilds its SOW topic."""
