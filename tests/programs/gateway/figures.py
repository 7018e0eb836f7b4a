"""The engine's figures of the gateway: lookups, indexed queries, windows and filters over many records on disk.

The view is the gateway's own, RocksDB on disk; figures are of this process alone, with the network left out::

    python -m tests.programs.gateway.figures --records 1000000
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from processor.client.feeds.stored_view import StoredView
from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec
from processor.merge import KeyFields
from processor.record import Record
from processor.subscriptions import Engine, SubscriptionSpec, Topic, parse_options
from processor.subscriptions.records.update_history import UpdateHistory

TOPIC = Topic("orders", JsonCodec(CodecOptions()), KeyFields(("/id",)))
BATCH = 20_000
TICK = 500
"""Updates after which the messages are taken, as the sessions of a gateway do it every 20 ms."""


def record(number: int, offset: int, rng: random.Random, version: int = 1) -> Record:
    """A record of about 150 bytes; 100 records share each customer."""
    body = {
        "id": number,
        "customer": f"c{number // 100}",
        "px": rng.random(),
        "qty": rng.randrange(10**6),
        "symbol": f"s{number % 10_000}",
        "note": "x" * 60,
    }
    return Record(b"%d" % number, orjson.dumps(body), [("version", b"%d" % version)], offset, 1_700_000_000_000)


def rss_mb() -> float:
    """The resident memory of this process, MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def ms_of(call: Callable[[], Any]) -> float:
    """The milliseconds that a call takes."""
    began_s = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began_s)


def percentile(values: list[float], share: float) -> float:
    """The value below which a share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def spec(text: str | None, **options: Any) -> SubscriptionSpec:
    """A subscription with a snapshot and deltas."""
    form = {"snapshot": True, "live": True, "delta": True}
    return SubscriptionSpec(TOPIC, text, parse_options(None, **form, oof=True, **options), **form)


def query(engine: Engine, asked: SubscriptionSpec, count: int) -> Any:
    """Begin a subscription, and take its snapshot of `count` records."""
    desk = engine.connect()
    running = desk.subscribe(asked, "1")
    taken = sum(message.command == "sow" for message in desk.take(count + 10))
    assert taken == count, (taken, count)
    return desk, running


def prepared(engine: Engine, asked: SubscriptionSpec) -> Any:
    """Begin a window of 100 records as a session does, whose order should be there."""
    build = engine.prepare(asked)
    assert build is None or build.is_done
    try:
        return query(engine, asked, 100)
    finally:
        if build is not None:
            engine.release(build)


def filled(directory: Path, records: int, rng: random.Random, orders: tuple[str, ...] = ()) -> Engine:
    """An engine over so many records on disk, with a declared index, and declared orders."""
    view = StoredView(directory, "orders.sow", "AAAA", 1, keeps=False)
    engine = Engine(TOPIC, view, history=UpdateHistory(1_000_000), indexes=[("/customer",)], orders=orders)
    for begin in range(0, records, BATCH):
        engine.load(0, [record(number, number, rng) for number in range(begin, min(records, begin + BATCH))])
    return engine


def run(records: int, window_records: int, seed: int) -> None:
    """Measure, and print a row for each figure."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="sowstream-figures-") as directory:
        engine = filled(Path(directory), records, rng)
        before = rss_mb()
        took_s = ms_of(engine.index) / 1000
        each = (rss_mb() - before) * 1024 * 1024 / records
        print(f"declared index of {records:,} records: {took_s:.1f} s, {each:.0f} bytes a record")
        lookups = [ms_of(lambda: engine.find(b"%d" % rng.randrange(records))) for _ in range(5_000)]
        print(
            f"lookup of one of {records:,}: p50 {percentile(lookups, 0.5):.3f} ms, "
            f"p99 {percentile(lookups, 0.99):.3f} ms"
        )
        queries = []
        for _ in range(300):
            asked = spec(f"/customer = 'c{rng.randrange(records // 100)}'")
            queries.append(ms_of(lambda asked=asked: query(engine, asked, 100)[0].close()))
        print(
            f"indexed query of 100 of {records:,}: p50 {percentile(queries, 0.5):.2f} ms, "
            f"p99 {percentile(queries, 0.99):.2f} ms"
        )
    with tempfile.TemporaryDirectory(prefix="sowstream-figures-") as directory:
        engine = filled(Path(directory), window_records, rng, ("/px DESC",))
        took_s = ms_of(engine.index) / 1000
        print(f"declared index and declared order of {window_records:,} records: {took_s:.1f} s")
        windows(engine, window_records, rng)
    with tempfile.TemporaryDirectory(prefix="sowstream-figures-") as directory:
        filters(filled(Path(directory), window_records, rng), window_records, rng)


def windows(engine: Engine, records: int, rng: random.Random) -> None:
    """The first window of an order, declared and not, a second one, and scrolling."""
    asked = spec(None, order_by="/px DESC", top_n=100)
    ready = ms_of(lambda: prepared(engine, asked)[0].close())  # noqa: PLW0108
    print(f"first window of 100 of {records:,} in a declared order: {ready:.1f} ms")
    other = spec(None, order_by="/qty", top_n=100)
    before, slices = rss_mb(), []
    build = engine.prepare(other)
    assert build is not None

    def advance() -> None:
        slices.append(ms_of(build.advance))

    cpu_s = time.process_time()
    while not build.is_ready(other.window_depth):
        advance()
    first_s, first_cpu_s = sum(slices) / 1000, time.process_time() - cpu_s
    early = ms_of(lambda: query(engine, other, 100)[0].close())  # noqa: PLW0108
    print(
        f"first window of 100 of {records:,} in another order: {first_s + early / 1000:.1f} s, {first_cpu_s:.1f} s of "
        f"processor time, in {len(slices):,} slices; {floor(engine)}"
    )
    while not build.is_done:
        advance()
    each = (rss_mb() - before) * 1024 * 1024 / records
    ready = ms_of(lambda: query(engine, other, 100)[0].close())  # noqa: PLW0108
    engine.release(build)
    again = ms_of(lambda: prepared(engine, other)[0].close())  # noqa: PLW0108
    print(
        f"another order of {records:,} rows built: {sum(slices) / 1000:.1f} s in {len(slices):,} slices, p99 "
        f"{percentile(slices, 0.99):.1f} ms, longest {max(slices):.1f} ms, {each:.0f} bytes a row; then its window of "
        f"100: {ready:.1f} ms; the next one after that has ended: {again:.1f} ms"
    )
    first = prepared(engine, asked)
    more = [ms_of(lambda: query(engine, asked, 100)[0].close()) for _ in range(50)]  # noqa: PLW0108
    print(
        f"another window of 100 of {records:,}: p50 {percentile(more, 0.5):.1f} ms, p99 {percentile(more, 0.99):.1f} ms"
    )
    desk, running = first
    scrolls = []
    for _ in range(200):
        page = spec(None, order_by="/px DESC", top_n=100, skip_n=rng.randrange(records - 100))

        def scroll(page: SubscriptionSpec = page) -> None:
            nonlocal running
            running = desk.replace(running, page)
            desk.take(1_000)

        scrolls.append(ms_of(scroll))
    print(f"scrolling by replace: p50 {percentile(scrolls, 0.5):.1f} ms, p99 {percentile(scrolls, 0.99):.1f} ms")
    desk.close()


def floor(engine: Engine) -> str:
    """The processor time of reading all rows from RocksDB, and of parsing them, without anything else."""
    view = engine._records._view
    assert isinstance(view, StoredView)
    view.write_behind()
    view.write_behind()
    (part,) = view._partitions.values()
    cpu_s = time.process_time()
    for _ in part._store.scan_rows():
        pass
    rows_s = time.process_time() - cpu_s
    values = [record.value for record in view.scan()]
    cpu_s = time.process_time()
    for value in values:
        orjson.loads(value or b"")
    return f"RocksDB alone {rows_s:.1f} s, orjson alone {time.process_time() - cpu_s:.1f} s"


def filters(engine: Engine, records: int, rng: random.Random) -> None:
    """The cost of an update with 10,000 equality and 1,000 range filters."""
    offset = records
    desks: list[Any] = []

    def take(batch: list[Record]) -> None:
        engine.take(0, batch, 0)
        for desk in desks:
            if desk.has_waiting:
                desk.take(TICK)

    def updates(count: int) -> float:
        nonlocal offset
        took_ms = 0.0
        for _ in range(0, count, TICK):
            batch = [record(rng.randrange(records), offset + place, rng, 2) for place in range(TICK)]
            offset += TICK
            took_ms += ms_of(lambda batch=batch: take(batch))
        return 1000 * took_ms / count

    updates(2_000)
    without = updates(5_000)
    for title, symbol in (("none of which matches", "z"), ("one of which matches", "s")):
        desks[:] = [engine.connect() for _ in range(100)]
        form = {"snapshot": False, "live": True, "delta": True}
        for number in range(11_000):
            text = f"/symbol = '{symbol}{number}'" if number < 10_000 else f"/qty < {number - 11_000}"
            options = parse_options(None, **form)
            desks[number % 100].subscribe(SubscriptionSpec(TOPIC, text, options, **form), str(number))
        updates(1_000)
        with_filters = updates(5_000)
        print(
            f"10,000 equality and 1,000 range filters, {title}: {with_filters:.1f} µs an update, {without:.1f} µs "
            f"without a subscriber: {with_filters - without:+.1f} µs"
        )
        for desk in desks:
            desk.close()


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="for lookups and indexed queries")
    parser.add_argument("--window-records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    run(arguments.records, arguments.window_records, arguments.seed)
    print(f"largest resident memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
