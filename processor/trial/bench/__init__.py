"""`sowstream bench`: measures the speed of one worker on this machine, next to the ceiling of its client library.

In reading order: `plan` has the options, the expected duration and the machine, `run` the sequence of measurements,
`setup` a worker's settings and the input, `programs` runs and times the ceiling and the worker, `result` computes and
prints the figures.
"""

from processor.trial.bench.plan import BenchOptions
from processor.trial.bench.result import (
    EXPLAINED,
    LATENCY_COLUMNS,
    LATENCY_EXPLAINED,
    THROUGHPUT_COLUMNS,
    Result,
    as_tree,
    latency_rows,
    throughput_rows,
)
from processor.trial.bench.run import BenchProgress, run_bench

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
