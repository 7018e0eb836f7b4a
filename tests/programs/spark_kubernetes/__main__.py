"""Runs the pipeline in a cluster that has the images: `make program NAME=spark_kubernetes ARGS="--records 10000"`.

`kubectl`, `helm` and a `KUBECONFIG` are found in the environment, or in K8S_DIR: `K8S_DIR/bin`, `K8S_DIR/kubeconfig`.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path

from tests.kubernetes.cluster import Cluster
from tests.programs.harness import print_progress
from tests.programs.spark_kubernetes.checks import HERE, Published, Run
from tests.programs.spark_kubernetes.submitted import merge_trades, submit_examples


def main() -> int:
    """Run all steps; the namespace is removed, unless it is to be kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.spark_kubernetes", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000, help="published before each of the three results")
    parser.add_argument("--keys", type=int, default=2_000)
    parser.add_argument("--image", default="sowstream", help="the image of workers, without its tag")
    parser.add_argument("--spark-image", default="sowstream-spark", help="the image of driver and executors")
    parser.add_argument("--tag", default="0.1.0", help="the tag of both")
    parser.add_argument(
        "--broker-image", default="apache/kafka:4.1.1", help="Java, and Kafka's jars in /opt/kafka/libs"
    )
    parser.add_argument("--namespace", default=f"spark-{secrets.token_hex(3)}")
    parser.add_argument("--keep", action="store_true", help="keep the namespace")
    arguments = parser.parse_args()
    if directory := os.environ.get("K8S_DIR"):
        os.environ["PATH"] = f"{directory}/bin:{os.environ['PATH']}"
        os.environ["KUBECONFIG"] = str(Path(directory) / "kubeconfig")
    # A node of two cores, busy with all of it, takes minutes to start a driver and two executors.
    cluster = Cluster(arguments.namespace, (HERE / "values.yaml",), patience_s=600)
    images = {
        "image.repository": arguments.image,
        "image.tag": arguments.tag,
        "spark.image.repository": arguments.spark_image,
        "spark.image.tag": arguments.tag,
    }
    names = tuple(word for name, value in images.items() for word in ("--set", f"{name}={value}"))
    run = Run(cluster, Published(arguments.keys), print_progress, names)
    try:
        run.prepare(arguments.broker_image)
        run.publish(arguments.records)
        run.start()
        run.kill_executor(arguments.records)
        run.end_driver(arguments.records)
        submit_examples(run, f"{arguments.spark_image}:{arguments.tag}")
        merge_trades(run, f"{arguments.spark_image}:{arguments.tag}", arguments.records)
    finally:
        if not arguments.keep:
            cluster.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
