"""The chart in a real cluster: `make test-kubernetes`.

- `cluster` runs `kubectl` and `helm`; `api` asks the API server, through which it reaches the pods' ports;
- `estate` has a secured Kafka, the programs of `in_pods`, and a release of the chart;
- `pod_watch` samples the readiness of the pods and the states of their partitions;
- `figures` collects the results, and prints them as a table.

`in_pods` runs in the cluster: it publishes, notes the pauses of each partition, and accounts for every record.
"""
