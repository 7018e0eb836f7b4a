"""For trials on one machine: a real Kafka, the demo and the benchmark. No worker needs it."""
