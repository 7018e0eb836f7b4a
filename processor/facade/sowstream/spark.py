"""Spark: `from sowstream.spark import read_sow`. It is package `spark_integration` itself, whose names are lazy."""

import sys
from typing import TYPE_CHECKING

import spark_integration

if TYPE_CHECKING:
    from spark_integration import *  # noqa: F403

sys.modules[__name__] = spark_integration
