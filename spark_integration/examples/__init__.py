"""Example programs to read and run: typical uses of SOW and delta topics in Spark."""
