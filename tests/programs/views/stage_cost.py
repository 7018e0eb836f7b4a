"""Processor time of a view's stages for each update, without a broker: a figure that a busy machine changes little."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable

from processor.kafka.partitioner import partition_for
from processor.record import Record
from tests.builtin.view.chain import NOW_MS, AggregateChain

_PARTITIONS = 4


def stage_costs(
    say: Callable[[str], None], *, records: int, keys: int, groups: int, commit_records: int, is_combined: bool
) -> None:
    """Print the microseconds of processor time that each stage takes for an update, the first of each key apart.

    Only what the runtime calls counts: a processor with its stores in memory. Polling, sending and commits do not, nor
    does the garbage collector, which workers run twice a minute: it would go through all records of the program.

    Args:
        say: prints a line.
        records: updates that count.
        keys: the number of records' keys, each of which has a record before.
        groups: the number of groups.
        commit_records: input records of one transaction.
        is_combined: whether the view combines, or sends a part for each record.
    """
    settings = {
        "group_by": ["/group"],
        "fields": {"/n": "COUNT(*)", "/qty": "SUM(/qty)"},
        "partial_aggregation": is_combined,
    }
    chain = AggregateChain(settings, inputs=_PARTITIONS, partitions=_PARTITIONS, checks_state=False)
    rng = random.Random(1)
    gc.disable()
    spent_s, parts = {"first stage": 0.0, "second stage": 0.0}, 0
    for number in range(-keys, records):
        key = number + keys if number < 0 else rng.randrange(keys)
        group = key % groups if rng.random() < 0.9 else rng.randrange(groups)
        body = {"id": key, "group": f"g{group}", "qty": abs(number) % 1000, "note": "-" * 20}
        split = chain.splits[partition_for(b"%d" % key, _PARTITIONS)]
        value = json.dumps(body, separators=(",", ":")).encode()  # As workers write it.
        split.input.append(Record(b"%d" % key, value, [("version", b"1")], len(split.input), NOW_MS))
        if (number + 1) % commit_records == 0 or number == records - 1:
            before = sum(len(aggregate.input) for aggregate in chain.aggregates)
            first_s = _seconds(chain.run_splits)
            second_s = _seconds(chain.run_aggregates)
            if number >= 0:
                spent_s["first stage"] += first_s
                spent_s["second stage"] += second_s
                parts += sum(len(aggregate.input) for aggregate in chain.aggregates) - before
    costs = ", ".join(f"{stage} {seconds / records * 1e6:.1f} us" for stage, seconds in spent_s.items())
    kind = "a part for each group" if is_combined else "a part for each record"
    say(f"{kind}: {costs} of processor time an update; {parts / records:.2f} parts an update")


def _seconds(run: Callable[[], None]) -> float:
    began_s = time.thread_time()
    run()
    return time.thread_time() - began_s
