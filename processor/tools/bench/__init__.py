"""`sowstream bench`: measures the speed of one worker on this machine, next to the ceiling of its client library.

In reading order: `plan` has the options and the expected duration, `run` the sequence of measurements, `load` the
input, `setup` a worker's settings, `programs` runs and times the ceiling and the worker, `delays` measures latency,
`figures` computes medians and ratios, `machine` describes the machine, `result` prints.
"""

from processor.tools.bench.plan import BenchOptions
from processor.tools.bench.result import (
    EXPLAINED,
    LATENCY_COLUMNS,
    LATENCY_EXPLAINED,
    THROUGHPUT_COLUMNS,
    Result,
    as_tree,
    latency_rows,
    throughput_rows,
)
from processor.tools.bench.run import BenchProgress, run_bench

__all__ = [
    "EXPLAINED",
    "LATENCY_COLUMNS",
    "LATENCY_EXPLAINED",
    "THROUGHPUT_COLUMNS",
    "BenchOptions",
    "BenchProgress",
    "Result",
    "as_tree",
    "latency_rows",
    "run_bench",
    "throughput_rows",
]
