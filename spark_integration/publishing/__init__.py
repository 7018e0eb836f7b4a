"""DataFrames as commands of a topic, each merged once however often Spark writes it."""
