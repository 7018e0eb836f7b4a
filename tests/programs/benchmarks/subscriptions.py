"""Measures the costs of subscriptions for an engine: one process, no Kafka, records as a worker writes them.

Figures are CPU time, medians of rounds in which all compared cases run in turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Connection, Engine, MemoryRecords, NoRecords, SubscriptionSpec, Topic, parse_options
from tests.programs.benchmarks.figures import Figures, write

TOPIC = Topic("prices", JsonCodec(CodecOptions()), KeyFields(("/id",)))
BATCH = 500
"""Number of updates that an engine processes at once."""
MANY = (10, 100, 1_000, 10_000)
UPDATES_PER_SECOND = 100_000
"""Rate by the clock that the engines get: conflation depends on it."""
FULL = {"snapshot": False, "live": True, "delta": False}
DELTA = {"snapshot": False, "live": True, "delta": True}
SNAPSHOT = {"snapshot": True, "live": False, "delta": False}
SINGLE = (
    ("full, no view", FULL, None, ""),
    ("full", FULL, None, ""),
    ("full, with a filter that matches half", FULL, "/qty > 50", ""),
    ("delta", DELTA, None, ""),
    ("delta, with that filter", DELTA, "/qty > 50", ""),
    ("delta, with that filter and oof", DELTA, "/qty > 50", "oof"),
    ("delta, selected", DELTA, None, "select=[-/,+/px],no_empties"),
    ("full, conflated over 1 s", FULL, None, "conflation=1s"),
    ("delta, conflated over 1 s", DELTA, None, "conflation=1s"),
    ("top 100 of an order", FULL, None, "oof,top_n=100,order_by=[/px DESC]"),
)
SNAPSHOTS = (
    ("all", None, ""),
    ("`/symbol = 'X7'`, 1 of 1,000", "/symbol = 'X7'", ""),
    ("`/qty > 50`, a half", "/qty > 50", ""),
    ("the same, selected", "/qty > 50", "select=[-/,+/px]"),
    ("the same, ordered", "/qty > 50", "order_by=[/px DESC]"),
    ("the same, the first 100", "/qty > 50", "order_by=[/px DESC],top_n=100"),
)


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=20_000, help="that each engine takes, in each round")
    parser.add_argument("--records", type=int, default=1_000_000, help="of which snapshots are taken")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("many", "single", "snapshot"))
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    arguments = parser.parse_args()
    figures: Figures = {}
    if arguments.only in (None, "many"):
        figures |= _many(arguments.updates, arguments.rounds)
    if arguments.only in (None, "single"):
        figures |= _single(arguments.updates, arguments.rounds)
    if arguments.only in (None, "snapshot"):
        figures |= _snapshots(arguments.records, arguments.rounds)
    write(arguments.json, figures)


class Desk(NamedTuple):
    """An engine, its subscribers, and its input."""

    engine: Engine
    subscribers: list[Connection]
    updates: list[Record]


def _many(updates: int, rounds: int) -> Figures:
    """Measure subscribers of one symbol each, with an index and without; the subscribers' own time is not counted."""
    print("| subscriptions | filters | µs an update | messages an update |\n|---|---|---|---|")
    desks = {}
    for text, share in (("/symbol = 'X{}'", 1), ("/n >= {} AND /n <= {}", 20)):
        for count in MANY:
            engine = Engine(TOPIC, NoRecords())
            filters = [text.format(number, number) for number in range(count)]
            subscribers = [_subscribe(engine, FULL, filtered, "") for filtered in filters]
            desks[f"{count:,} | `{text.format('<i>', '<i>')}`"] = Desk(
                engine, subscribers, _updates(updates // share, count)
            )
    return _print_medians(_measure(desks, rounds))


def _single(updates: int, rounds: int) -> Figures:
    """Measure one subscription of each kind, with updates of 1,000 symbols, whose messages its subscriber takes."""
    print("\n| one subscription | µs an update | messages an update |\n|---|---|---|")
    desks = {}
    for name, how, filtered, options in SINGLE:
        engine = Engine(TOPIC, NoRecords() if name.endswith("no view") else MemoryRecords())
        engine.load(0, _updates(1000, 1000, first=0))
        desks[name] = Desk(engine, [_subscribe(engine, how, filtered, options)], _updates(updates, 1000))
    return _print_medians(_measure(desks, rounds))


def _snapshots(records: int, rounds: int) -> Figures:
    """Measure the state of the world, read from memory to its end."""
    print("\n| snapshot | records/s | messages | CPU s |\n|---|---|---|---|")
    engine = Engine(TOPIC, MemoryRecords())
    engine.load(0, _updates(records, records, in_turn=True))
    gc.collect()
    gc.freeze()  # A million records that live to the end: the collector need not scan them.
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name, _, _ in SNAPSHOTS}
    for _ in range(rounds):
        for name, filtered, options in SNAPSHOTS:
            started, count = time.process_time(), 0
            subscriber = _subscribe(engine, SNAPSHOT, filtered, options)
            while taken := subscriber.take(1000):
                count += len(taken)
            seen[name].append((time.process_time() - started, count))
    gc.unfreeze()
    for name, runs in seen.items():
        seconds = median(one for one, _ in runs)
        print(f"| {name} | {records / seconds:,.0f} | {runs[0][1]:,} | {seconds:.2f} |", flush=True)
    return {
        f"snapshot: {name}": [{"records_per_s": records / seconds, "messages": count} for seconds, count in runs]
        for name, runs in seen.items()
    }


def _measure(desks: dict[str, Desk], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Microseconds and messages per update, for each desk; the first round is not counted."""
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in desks}
    now_ms = 0
    for _ in range(rounds + 1):
        for name, (engine, subscribers, updates) in desks.items():
            gc.collect()
            spent_s, messages = 0.0, 0
            for begin in range(0, len(updates), BATCH):
                batch = updates[begin : begin + BATCH]
                now_ms += BATCH * 1000 // UPDATES_PER_SECOND
                started = time.process_time()
                engine.take(0, batch, now_ms)
                engine.punctuate(now_ms)
                if len(subscribers) == 1:
                    messages += len(subscribers[0].take(10**9))
                spent_s += time.process_time() - started
            messages += sum(len(subscriber.take(10**9)) for subscriber in subscribers)
            seen[name].append((spent_s * 1e6 / len(updates), messages / len(updates)))
    return {name: runs[1:] for name, runs in seen.items()}


def _print_medians(seen: dict[str, list[tuple[float, float]]]) -> Figures:
    """Print the medians; returns every round, as stored in the JSON."""
    for name, runs in seen.items():
        update_us, messages = (median(column) for column in zip(*runs, strict=True))
        print(f"| {name} | {update_us:,.2f} | {messages:.2f} |", flush=True)
    return {
        name: [{"update_us": us, "messages": message_count} for us, message_count in runs]
        for name, runs in seen.items()
    }


def _subscribe(engine: Engine, how: dict[str, bool], filtered: str | None, options: str) -> Connection:
    """Subscribe a connection of its own."""
    subscriber = engine.connect()
    subscriber.subscribe(SubscriptionSpec(TOPIC, filtered, parse_options(options, **how), **how))
    return subscriber


def _updates(count: int, symbols: int, *, first: int = 1000, in_turn: bool = False) -> list[Record]:
    """Updates of prices, of random symbols or of one after the other."""
    rng = random.Random(7)
    updates = []
    for place in range(count):
        number = place % symbols if in_turn else rng.randrange(symbols)
        quote = {
            "id": number,
            "symbol": f"X{number if not in_turn else number % 1000}",
            "n": number,
            "px": round(rng.uniform(1, 1000), 2),
            "qty": rng.randint(1, 100),
            "venue": {"name": "north", "open": True},
            "note": "firm",
        }
        value = json.dumps(quote, separators=(",", ":")).encode()
        updates.append(
            Record(b"%d" % number, value, [("version", b"%d" % (place + 1))], first + place, 1_700_000_000_000)
        )
    return updates


if __name__ == "__main__":
    main()
