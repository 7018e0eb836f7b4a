"""The pipeline on Spark in a real Kubernetes: a driver with two executors, kills of both, and `spark-submit` from outside.

- `cluster` runs `kubectl` and `helm`;
- `checks` has the steps: what is published, killed and compared;
- `counted` runs in the driver's pod, and counts the rows of the results and the tasks of the executors.
"""
