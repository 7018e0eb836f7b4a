"""A local Spark session that can talk to Kafka: for examples, notebooks and tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from processor.errors import ConfigurationError
from processor.tools.broker.directories import cache_dir
from spark_integration.java import require_java
from spark_integration.source.data_source import register_source

_CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PACKAGES: Final = "spark.jars.packages"


def spark_session(app_name: str, **conf: str) -> SparkSession:
    """Start Spark in this process with the Kafka connector of its own version, or return the existing session.

    The session also knows the format `sow`.

    The first start downloads the connector from the central Maven repository to `ivy` in Sowstream's cache directory.

    Args:
        app_name: shown in Spark's logs and pages.
        conf: Spark settings, `**{"spark.sql.shuffle.partitions": "2"}`; they override the defaults. Packages are
            added to the connector; a connector among them replaces it.

    Raises:
        ConfigurationError: there is no Java that Spark runs on, or the existing session has no connector.
    """
    _refuse_session_without_connector()
    require_java()
    # Spark starts its Python workers by this name; the default is the first `python3` on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for name, value in (_defaults() | conf | {_PACKAGES: _packages(conf.get(_PACKAGES, ""))}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register_source(session)
    return session


def _defaults() -> dict[str, str]:
    return {
        "spark.master": "local[*]",
        # A local session needs no other interface, and no host name that resolves.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.jars.ivy": str(cache_dir() / "ivy"),
        "spark.jars.ivySettings": str(Path(__file__).with_name("ivysettings.xml")),
        # The default keeps all state in memory, and cannot keep that of `merge_stream` at all.
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    }


def _packages(given: str) -> str:
    names = [name for name in given.split(",") if name]
    if not any("spark-sql-kafka-0-10" in name for name in names):
        names.insert(0, f"{_CONNECTOR}:{pyspark.__version__}")
    return ",".join(names)


def _refuse_session_without_connector() -> None:
    session = SparkSession.getActiveSession()
    if session is not None and "spark-sql-kafka-0-10" not in (session.sparkContext.getConf().get(_PACKAGES) or ""):
        raise ConfigurationError(
            "this process has a Spark session without the Kafka connector, and Spark cannot add it later; "
            f"stop that session first, or start it with {_PACKAGES}={_packages('')}"
        )
