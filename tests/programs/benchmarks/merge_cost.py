"""Measures the processor time of a merge alone, beside another checkout's: no Kafka, no disk, each in turn.

    python -m tests.programs.benchmarks.merge_cost --before ../old --rounds 12

Each measurement is a process of its own, which merges batches of deltas through `ProcessorTestDriver` and prints the
microseconds a record of `Task.process` in its fastest batch: other load makes batches slower, never faster.

series       is
-----------  ----------------------------------------------------------------------
fast         deltas without headers: the compiled fast path
parts        deltas with `client` and `sequence`, and a merge rule: the merge in parts
msgpack      as `fast`, of another type; so are `bson` and `avro`, whose deltas are
             whole records, as each is of the schema
decode       an Avro message, read; `encode`: written
import       `import sowstream`, in a process with nothing else
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.codec import Codec
    from processor.config import TopicConfig
    from processor.record import Headers, Record

SERIES: Final = ("fast", "parts", "msgpack", "bson", "avro", "decode", "encode", "import")
_SCHEMA: Final = Path(__file__).parents[3] / "schemas" / "order.avsc"
_KEYS, _BATCH, _BATCHES, _WARM_UP = 2_000, 500, 120, 20


def main() -> None:
    """Measure both checkouts in turn, and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout, with its modules compiled")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=SERIES, help="these series; all without it")
    parser.add_argument("--one", choices=SERIES, help="measure this series here, once")
    arguments = parser.parse_args()
    if arguments.one:
        print(fastest_us(arguments.one))
        return
    checkouts = [one.resolve() for one in (arguments.before, Path.cwd()) if one]
    for series in arguments.only or SERIES:
        figures: dict[Path, list[float]] = {checkout: [] for checkout in checkouts}
        with tempfile.TemporaryDirectory(prefix="sowstream-cost-") as compiled:
            for number in range(arguments.rounds + 1):
                for checkout in checkouts:
                    figure = _measure(checkout, series, compiled)
                    if number:  # The first round compiles.
                        figures[checkout].append(figure)
        for checkout, seen in figures.items():
            print(f"{series:12}{statistics.median(seen):8.2f} µs  {checkout}")
        if len(checkouts) > 1:
            pairs = zip(*figures.values(), strict=True)
            print(f"{series:12}{statistics.median(now / then for then, now in pairs):8.3f} times the earlier one")


def _measure(checkout: Path, series: str, compiled: str) -> float:
    """Measure one series of a checkout in a process of its own; `compiled` is the place of its bytecode."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = compiled
    # This file as a script: the other checkout may lack it, and its modules are to be those that are imported.
    done = subprocess.run(
        [sys.executable, __file__, "--one", series],
        env={**environment, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def fastest_us(series: str) -> float:
    """The processor time of a series' fastest batch, in microseconds a record; of `import`, of the process."""
    if series == "import":
        return import_us()
    if series in {"decode", "encode"}:
        return fastest_codec_us(series)
    return fastest_merge_us(series)


def import_us() -> float:
    """The processor time of importing the client, in microseconds."""
    import sowstream

    assert sowstream.Client
    return time.process_time() * 1_000_000


def fastest_codec_us(series: str) -> float:
    """Read or write all batches of Avro messages, and return the processor time of the fastest one."""
    codec, _ = _configured("avro")
    values = [_value(number, is_whole=True) for number in range(_BATCH)]
    messages = [codec.encode(value) for value in values]
    call, given = (codec.decode, messages) if series == "decode" else (codec.encode, values)
    batches_s = []
    for _ in range(_BATCHES):
        began_s = time.process_time()
        for one in given:
            call(one)  # type: ignore[operator]
        batches_s.append(time.process_time() - began_s)
    return min(batches_s[_WARM_UP:]) / _BATCH * 1_000_000


def fastest_merge_us(series: str) -> float:
    """Merge all batches, and return the processor time of the fastest one, in microseconds a record."""
    from processor.builtin.delta_merge.delta_merge import DeltaMerge
    from processor.runtime.task import Task
    from processor.testing import ProcessorTestDriver

    batches_s: list[float] = []
    process = Task.process

    def timed(task: Task, records: Sequence[Record]) -> None:
        began_s = time.process_time()
        process(task, records)
        batches_s[-1] += time.process_time() - began_s

    message_type = "json" if series in {"fast", "parts"} else series
    codec, topic = _configured(message_type, {"/qty": "sum"} if series == "parts" else None)
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", checks_state=False)
    Task.process = timed  # type: ignore[method-assign,assignment]
    for batch in range(_BATCHES):
        for number in range(batch * _BATCH, (batch + 1) * _BATCH):
            headers: Headers = [("client", b"feed"), ("sequence", b"%d" % (number + 1))] if series == "parts" else []
            message = codec.encode(_value(number, is_whole=series == "avro" or number < _KEYS))
            driver.append_input(b"%d" % (number % _KEYS), message, headers or None)
        batches_s.append(0.0)
        driver.feed()
        driver.commit()
    return min(batches_s[_WARM_UP:]) / _BATCH * 1_000_000


def _configured(message_type: str, merge_rules: Mapping[str, str] | None = None) -> tuple[Codec, TopicConfig]:
    from processor.codec import codec_of
    from processor.config import Config

    topic: dict[str, object] = {"message_type": message_type, "key": ["/id"], "merge_rules": merge_rules or {}}
    if message_type == "avro":
        topic["schema"] = str(_SCHEMA)
    config = Config.model_validate({"topics": {"orders": topic}})
    return codec_of(config, "orders"), config.topic("orders")


def _value(number: int, *, is_whole: bool) -> dict[str, object]:
    """An order as `schemas/order.avsc` has it, or a delta of two of its fields."""
    value: dict[str, object] = {"id": number % _KEYS, "qty": number % 100, "state": f"s{number % 5}"}
    if is_whole:
        value |= {
            "customer": "ACME",
            "item": "lorem ipsum dolor sit amet",
            "inventory": {"warehouse": "north", "reserved": number % 977},
            "credit": {"limit_ok": True, "score": number % 977 + 0.25},
        }
    return value


if __name__ == "__main__":
    main()
