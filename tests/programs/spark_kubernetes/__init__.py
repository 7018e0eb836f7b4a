"""The pipeline on Spark in a real Kubernetes: a driver, two executors, kills of both, `spark-submit` from outside.

- `checks` has the steps: what is published, killed and compared;
- `counted` runs in the driver's pod, and counts the rows of the results and the tasks of the executors;
- `submitted` runs the examples in cluster mode.
"""
