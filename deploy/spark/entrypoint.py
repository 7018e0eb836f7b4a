"""Starts the process of a container: a driver or an executor as Spark's Kubernetes master orders it, or a command.

Spark starts its pods with the argument `driver` or `executor` and further values in the environment, by the contract of
its own image. `spark-submit …` runs Spark's program; other arguments are those of `sowstream-spark`. The process takes
this one's place, with all of its environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence


def command(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command line of the process.

    Args:
        arguments: those of the container.
        environment: the variables of the container.

    Raises:
        KeyError: a variable that Spark sets for an executor is missing.
    """
    spark_home = environment.get("SPARK_HOME", "/opt/spark")
    match list(arguments):
        case ["driver", *rest]:
            address = environment["SPARK_DRIVER_BIND_ADDRESS"]
            bind = ["--conf", f"spark.driver.bindAddress={address}", "--deploy-mode", "client"]
            return [f"{spark_home}/bin/spark-submit", *bind, *rest]
        case ["executor", *_]:
            return _executor(environment, spark_home)
        case ["spark-submit", *rest]:
            return [f"{spark_home}/bin/spark-submit", *rest]
        case rest:
            return ["sowstream-spark", *rest]


def _executor(environment: Mapping[str, str], spark_home: str) -> list[str]:
    """The Java process of an executor."""
    numbers = sorted(int(name[15:]) for name in environment if re.fullmatch(r"SPARK_JAVA_OPT_\d+", name))
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    places = [environment.get("SPARK_CONF_DIR"), environment.get("SPARK_CLASSPATH"), f"{spark_home}/jars/*"]
    return [
        "java",
        *(environment[f"SPARK_JAVA_OPT_{number}"] for number in numbers),
        # Spark reads the file of spark.authenticate.secret.file under this master alone, and asks the driver, from whom
        # an executor has its settings, only with that secret.
        "-Dspark.master=k8s://",
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(place for place in places if place),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", environment["SPARK_DRIVER_URL"]),
        *("--executor-id", environment["SPARK_EXECUTOR_ID"]),
        *("--cores", environment["SPARK_EXECUTOR_CORES"]),
        *("--app-id", environment["SPARK_APPLICATION_ID"]),
        *("--hostname", environment["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", environment["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", environment["SPARK_EXECUTOR_POD_NAME"]),
    ]


if __name__ == "__main__":
    line = command(sys.argv[1:], os.environ)
    os.execvp(line[0], line)
