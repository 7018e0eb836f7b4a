"""What a processor runs in, anywhere: in a worker, in the test driver, on Spark."""
