"""`sowstream bench`: how fast one worker is on this machine, beside the most that its client library could do.

In reading order: `plan` says what can be asked for and how long it takes, `run` what happens when, `load` what the
input is, `setup` what a worker is given, `programs` how the ceiling and the worker are run and timed, `delays` how long
a record takes, `figures` what is made of the figures, `machine` what they were measured on, `result` how they are told.
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
from processor.tools.bench.run import Progress, run_bench

__all__ = [
    "EXPLAINED",
    "LATENCY_COLUMNS",
    "LATENCY_EXPLAINED",
    "THROUGHPUT_COLUMNS",
    "BenchOptions",
    "Progress",
    "Result",
    "as_tree",
    "latency_rows",
    "run_bench",
    "throughput_rows",
]
