"""Moves the merge of a topic from its workers to Spark and back, makes its SOW topic what an archive says, and reconciles it."""
