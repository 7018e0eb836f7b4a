"""Processor time of a view's stages for each update, without a broker: a figure that a busy machine changes little."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable
from typing import Any

from processor.kafka.partitioner import partition_for
from processor.record import Record
from processor.testing import ProcessorTestDriver
from tests.builtin.view.chain import NOW_MS, AggregateChain
from tests.builtin.view.join_chain import JoinChain
from tests.programs.views.benchmark import KINDS

_PARTITIONS = 4
_HEADERS: list[tuple[str, bytes | None]] = [("version", b"1")]

Stages = dict[str, list[ProcessorTestDriver]]


def stage_costs(
    say: Callable[[str], None],
    kind: str,
    *,
    records: int,
    keys: int,
    groups: int,
    commit_records: int,
    is_combined: bool,
    join_method: str,
) -> None:
    """Print the microseconds of processor time that each stage takes for an update, the first of each key apart.

    Only what the runtime calls counts: a processor with its stores in memory. Polling, sending and commits do not, nor
    does the garbage collector, which workers run twice a minute: it would go through all records of the program.

    Args:
        say: prints a line.
        kind: of the view, see `KINDS`.
        records: updates that count.
        keys: the number of records' keys, each of which has a record before.
        groups: the number of groups, or of partners.
        commit_records: input records of one transaction.
        is_combined: whether a view with groups combines, or sends a part for each record.
        join_method: of a join.
    """
    stages = _join(groups, join_method) if kind == "join" else _groups(kind, is_combined=is_combined)
    rng = random.Random(1)
    gc.disable()
    spent_s, sent = dict.fromkeys(stages, 0.0), 0
    for number in range(-keys, records):
        key = number + keys if number < 0 else rng.randrange(keys)
        group = key % groups if rng.random() < 0.9 else rng.randrange(groups)
        body = {"id": key, "group": f"g{group}", "qty": abs(number) % 1000, "note": "-" * 20}
        _put(stages["first"], f"{key}", body)
        if (number + 1) % commit_records == 0 or number == records - 1:
            before = _inputs(stages)
            for stage, drivers in stages.items():
                seconds = _seconds(drivers)
                if number >= 0:
                    spent_s[stage] += seconds
            if number >= 0:
                sent += _inputs(stages) - before
    costs = ", ".join(f"{stage} {seconds / records * 1e6:.1f} us" for stage, seconds in spent_s.items())
    say(f"{kind}: {costs} of processor time an update; {sent / records:.2f} records an update between the stages")


def _groups(kind: str, *, is_combined: bool) -> Stages:
    """Make the stages of a view with groups, by name, in the order in which they run."""
    settings = {"group_by": ["/group"], "fields": KINDS[kind], "partial_aggregation": is_combined}
    chain = AggregateChain(settings, inputs=_PARTITIONS, partitions=_PARTITIONS, checks_state=False)
    return {"first": chain.splits, "second": chain.aggregates}


def _join(partners: int, method: str) -> Stages:
    """Make the stages of a join, which have all partners."""
    fields = {name: text.format(lookup="customers") for name, text in KINDS["join"].items()}
    chain = JoinChain(
        {
            "underlying": "orders", "fields": fields, "join_method": method,
            "join": [{"topic": "customers", "on": {"/group": "/id"}}],
        },
        partitions=_PARTITIONS, checks_state=False,
    )  # fmt: skip
    for group in range(partners):
        _put(chain.right, f"g{group}", {"id": f"g{group}", "name": f"name of g{group}"})
    chain.run()
    keys = {"keys": chain.joins} if method == "repartition" else {}
    return {"first": chain.left, **keys, "rows": chain.last}


def _put(drivers: list[ProcessorTestDriver], key: str, body: dict[str, Any]) -> None:
    """Append a record to its partition, as workers write it."""
    driver = drivers[partition_for(key.encode(), len(drivers))]
    value = json.dumps(body, separators=(",", ":")).encode()
    driver.input.append(Record(key.encode(), value, _HEADERS, len(driver.input), NOW_MS))


def _inputs(stages: Stages) -> int:
    """Count the records that stages have sent to others."""
    return sum(len(driver.input) for stage, drivers in stages.items() if stage != "first" for driver in drivers)


def _seconds(drivers: list[ProcessorTestDriver]) -> float:
    """Let a stage read, work and commit; returns its processor time."""
    began_s = time.thread_time()
    for driver in drivers:
        driver.feed()
        driver.advance_time(1)
        driver.commit()
    return time.thread_time() - began_s
