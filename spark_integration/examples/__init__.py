"""Programs to read and run: what people do with SOW and delta topics in Spark."""
