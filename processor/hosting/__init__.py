"""The surroundings of a plug-in, the same in a worker, in the test driver and on Spark."""
