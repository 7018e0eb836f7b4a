"""The page at length in a real Chromium: every row of a million in its place, and frames a second under many updates.

::

    make program NAME=gateway.desk
    make program NAME=gateway.desk ARGS="--rows 20000 --seed 7"
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from processor.record import Record

TOPIC = "orders"
FIELDS = ("id", "half", "text", "at", "open", "mixed", "deep/long")
PATIENCE_MS = 600_000
WINDOW_ROWS = 5_000
"""Most records in one ordered answer of the gateway."""
BATCH = 100
STRETCH_S = 160.0
"""The time of each of the five stretches of `end`."""
SETTLED = "window.sowstreamPage.grid?.isSettled"
SIGHT = """(column) => {
  const top = document.querySelector('#grid .ag-header').getBoundingClientRect().bottom - 7;
  const bottom = document.querySelector('#grid .ag-grid-viewport').getBoundingClientRect().bottom + 7;
  const rows = [];
  for (const row of document.querySelectorAll('#grid .ag-row')) {
    const box = row.getBoundingClientRect();
    if (box.top < top || box.bottom > bottom) continue;
    rows.push([Number(row.getAttribute('row-index')), row.querySelector(`[col-id="${column}"]`)?.textContent ?? '']);
  }
  return rows.sort(([one], [other]) => one - other);
}"""
"""The places and the texts of a column of the rows in sight, from the top: a quarter of the height of the first and the
last one may be hidden, which is above and below their texts."""
SAME = f"""() => {{
  const rows = ({SIGHT})('/id');
  const [before, text] = [window.sightBefore, JSON.stringify(rows)];
  window.sightBefore = text;
  return {SETTLED} && rows.length > 5 && rows.every(([, key]) => key) && text === before && rows;
}}"""
"""The places and the ids in sight, when they are all there and as they were a frame ago."""
WATCH = f"""() => {{
  const sight = {SIGHT};
  const look = () => {{
    for (const [place, key] of sight('/id')) if (key) window.rowsSeen.set(place, key);
    requestAnimationFrame(look);
  }};
  if (!window.rowsSeen) requestAnimationFrame(look);
  window.rowsSeen = new Map();
}}"""
"""Note, from now on, the places and the ids of the rows that a frame shows, also while the grid still scrolls."""
SEEN = "() => { const seen = [...window.rowsSeen]; window.rowsSeen = new Map(); return seen; }"
"""The places and the ids that were noted since the last call."""
FOCUSED = "window.sowstreamPage.grid.api.getFocusedCell()?.rowIndex"
PAGE_MS = 120
"""AG Grid takes one Page Down in 100 ms, and drops those between."""
FRAMES = """(seconds) => new Promise((done) => {
  const times = [];
  let drawn = 0;
  const observer = new MutationObserver(() => { drawn += 1; });
  observer.observe(document.querySelector('#grid'), { subtree: true, childList: true, characterData: true });
  const began = performance.now();
  const next = (now) => {
    times.push(now);
    if (now - began < seconds * 1000) { requestAnimationFrame(next); return; }
    observer.disconnect();
    const gaps = times.slice(1).map((time, at) => time - times[at]).sort((one, other) => one - other);
    done({
      frames: (times.length - 1) / ((times.at(-1) - times[0]) / 1000),
      p99: gaps[Math.floor(gaps.length * 0.99)],
      longest: gaps.at(-1),
      drawn: drawn / seconds,
    });
  };
  requestAnimationFrame(next);
})"""
"""Frames a second of the page, the gap between two of them, and drawings of the grid a second."""


def value(number: int, rng: random.Random) -> dict[str, Any]:
    """A record with a value of each kind; some of its fields are null, or not there."""
    record: dict[str, Any] = {
        "id": number,
        "half": rng.randrange(400_000) / 2,
        "text": f"t{rng.randrange(1000)}",
        "at": f"2026-11-{1 + number % 27:02d}T{number % 24:02d}:00:{number % 60:02d}Z",
        "open": number % 3 == 0,
        "qty": 0,
        "price": 1.5,
    }
    record["mixed"] = [None, number, str(number), f"{number}x", number % 2 == 0, number + 2**60][number % 6]
    return record if number % 5 else record | {"deep": {"long": number % 4 * 10**18 + number}}


def serve(rows: int, seed: int, pipe: Connection) -> None:
    """Serve a topic in memory, and update it as the pipe says: `(updates a second, first id, ids, field)`."""
    from tests.gateway.memory import MemoryWorld

    rng = random.Random(seed)
    world = MemoryWorld(TOPIC, history_bytes=64 * 1024 * 1024)
    feed = world.feeds[TOPIC]
    values = {}

    def fill() -> None:
        encode = feed.topic.codec.encode
        now_ms = int(time.time() * 1000)
        for number in range(rows):
            key = b"%d" % number
            values[number] = value(number, rng)
            partition = feed.partition(key)
            headers = [("version", b"1"), ("kind", b"insert")]
            feed.records[key] = Record(key, encode(values[number]), headers, feed.offsets[partition], now_ms)
            feed.versions[key] = 1
            feed.offsets[partition] += 1
        feed.restart()

    world.gateway.call(fill)
    pipe.send(world.gateway.address)
    order = pipe.recv()
    while order is not None:
        rate, first, count, field = order
        ends = threading.Event()
        written = [0]

        def write_batch(first: int = first, count: int = count, field: str | None = field) -> None:
            for _ in range(BATCH):
                number = first + rng.randrange(count)
                record = values[number]
                record["qty"] += rng.choice((-1, 1)) * rng.randrange(1, 5)
                record["price"] = round(1 + rng.random(), 4)
                if field is not None:
                    record[field] = rng.randrange(400_000) / 2
                feed.write(number, record)

        def write(rate: int = rate, ends: threading.Event = ends, written: list[int] = written) -> None:
            due_s = time.monotonic()
            while not ends.is_set():
                world.gateway.call(write_batch)
                written[0] += BATCH
                due_s += BATCH / rate
                ends.wait(max(0.0, due_s - time.monotonic()))

        writer = threading.Thread(target=write) if rate else None
        began_s = time.monotonic()
        if writer is not None:
            writer.start()
        order = pipe.recv()
        ends.set()
        if writer is not None:
            writer.join()
            pipe.send(written[0] / (time.monotonic() - began_s))
    world.close()


class Desk:
    """The page on a topic in another process."""

    def __init__(self, page: Any, address: str, pipe: Connection) -> None:
        self.page, self.address, self._pipe = page, address, pipe
        page.goto(f"http://{address}/#topic={TOPIC}")
        page.wait_for_function(SETTLED)

    @contextmanager
    def updates(self, rate: int, first: int, count: int, field: str | None = None) -> Iterator[list[float]]:
        """Updates of random ones of some records meanwhile; the list has their real number a second afterwards."""
        real: list[float] = []
        self._pipe.send((rate, first, count, field))
        yield real
        self._pipe.send((0, 0, 0, None))
        real.append(self._pipe.recv())

    def sort(self, field: str, *, is_falling: bool) -> str:
        """Click the header of a field until its order is there; returns the order."""
        page = self.page
        page.evaluate(f"window.sowstreamPage.grid.api.ensureColumnVisible('/{field}')")
        wanted = f"/{field} DESC" if is_falling else f"/{field}"
        for _ in range(3):
            if page.evaluate("window.sowstreamPage.grid.window.orderBy") == wanted:
                break
            before = page.evaluate("window.sowstreamPage.grid.window.orderBy")
            page.click(f'#grid .ag-header-cell[col-id="/{field}"] .ag-header-cell-text')
            page.wait_for_function(f"window.sowstreamPage.grid.window.orderBy !== {json.dumps(before)}")
        page.wait_for_function(SETTLED)
        assert page.evaluate("window.sowstreamPage.grid.window.orderBy") == wanted
        return wanted

    def filter(self, text: str) -> None:
        """Apply a filter."""
        self.page.fill("#filter", text)
        self.page.keyboard.press("Enter")
        self.page.wait_for_function(f"window.sowstreamPage.grid.window.filter === {json.dumps(text)} && {SETTLED}")

    def sow(self, order: str, text: str = "", skip: int = 0, count: int = WINDOW_ROWS) -> list[str]:
        """The keys that the gateway answers with."""
        asked = {"order_by": order, "select": "-/", "top_n": count, "skip_n": skip} | ({"filter": text} if text else {})
        url = f"http://{self.address}/v1/topics/{TOPIC}/sow?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_MS / 1000) as answer:
            return [json.loads(line)["sow_key"] for line in answer]

    def sight(self) -> list[tuple[int, str]]:
        """The places and the ids of the rows in sight, when all are there and two frames show the same."""
        return [(place, key) for place, key in self.page.wait_for_function(SAME, polling="raf").json_value()]

    @property
    def total(self) -> int:
        """The number of rows that match."""
        return int(self.page.inner_text("#rows").replace(",", ""))

    def page_down(self, first: int = 0, limit: int | None = None, limit_s: float = math.inf) -> list[str]:
        """The ids of the rows in their places from the first one on, by Page Down.

        Args:
            first: the place of the first row.
            limit: it ends after so many rows; None: at the last one.
            limit_s: it ends after so many seconds.
        """
        page = self.page
        page.evaluate(f"window.sowstreamPage.grid.api.ensureIndexVisible({first}, 'top')")
        page.wait_for_function(f"({SIGHT})('/id').some(([at]) => at === {first})")
        page.click(f'#grid .ag-row[row-index="{first}"] .ag-cell[col-id="/id"]')
        page.evaluate(WATCH)
        seen: list[str] = []
        end = self.total - first if limit is None else min(limit, self.total - first)
        ends_s = time.monotonic() + limit_s
        while True:
            rows = self.sight()
            shown, last = dict(page.evaluate(SEEN)) | dict(rows), rows[-1][0]
            hidden = [place for place in range(first + len(seen), last + 1) if place not in shown]
            assert not hidden, f"no frame showed places {hidden[0]} to {hidden[-1]}"
            seen += [shown[place] for place in range(first + len(seen), last + 1)]
            if len(seen) >= end or time.monotonic() > ends_s:
                return seen[:end]
            page.wait_for_timeout(PAGE_MS)
            focused = page.evaluate(FOCUSED)  # At first it goes to the last row in sight, and the grid need not scroll.
            page.keyboard.press("PageDown")
            page.wait_for_function(f"{FOCUSED} !== {focused}")


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def check(desk: Desk, rows: int, rng: random.Random) -> None:
    """Compare the grid with the gateway's answers, in every order."""
    page = desk.page

    def compare(order: str, text: str, place: int) -> None:
        """Compare the rows in sight at a place."""
        page.evaluate(f"window.sowstreamPage.grid.api.ensureIndexVisible({place}, 'top')")
        page.wait_for_function(f"({SIGHT})('/id').some(([at]) => at === {place})", polling="raf")
        sight = desk.sight()
        wanted = desk.sow(order, text, sight[0][0], len(sight))
        assert [key for _, key in sight] == wanted, (order, text, sight, wanted)

    for field in FIELDS:
        for is_falling in (False, True):
            began_s = time.monotonic()
            order = desk.sort(field, is_falling=is_falling)
            sorted_s = time.monotonic() - began_s
            with desk.updates(500, 0, rows):
                seen = desk.page_down(limit=2_000)
                assert seen == desk.sow(order, "", 0, 5_000)[: len(seen)], order
                for place in [rows - 1, *(rng.randrange(rows) for _ in range(8))]:
                    compare(order, "", place)
            say(f"{order}: sorted in {sorted_s:.1f} s; the first {len(seen):,} rows and 9 places are right")


def main() -> None:
    """Run all of it."""
    from playwright.sync_api import sync_playwright

    from tests.gateway.browsing import CHROMIUM

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("orders", "end", "moving", "frames"))
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    ours, theirs = multiprocessing.Pipe()
    served = multiprocessing.get_context("spawn").Process(target=serve, args=(asked.rows, asked.seed, theirs))
    began_s = time.monotonic()
    served.start()
    address = ours.recv()
    say(f"{asked.rows:,} records in {time.monotonic() - began_s:.0f} s")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1300, "height": 1_640}, bypass_csp=True)
            page.set_default_timeout(PATIENCE_MS)
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            desk = Desk(page, address, ours)
            for name, work in (("orders", check), ("end", end_to_end), ("moving", moving), ("frames", frames)):
                if asked.only in (None, name):
                    work(desk, asked.rows, rng)
            assert not faults, faults
            browser.close()
    finally:
        ours.send(None)
        served.join(60)
        served.terminate()


def end_to_end(desk: Desk, rows: int, rng: random.Random) -> None:
    """Page Down at the begin of a random order, in three places and at its end, with updates; in a high window."""
    desk.page.set_viewport_size({"width": 700, "height": 12_000})
    order = desk.sort(rng.choice(("half", "text", "mixed")), is_falling=rng.random() < 0.5)
    places: dict[str, int] = {}
    stretch = 0
    for at in ("begin", "middle", "middle", "middle", "end"):
        first = 0 if at == "begin" else rows - stretch if at == "end" else rng.randrange(rows)
        began_s = time.monotonic()
        with desk.updates(500, 0, rows) as real:
            seen = desk.page_down(first, limit_s=math.inf if at == "end" else STRETCH_S)
            took_s = time.monotonic() - began_s
            skips = range(first, first + len(seen), WINDOW_ROWS)
            wanted = [key for skip in skips for key in desk.sow(order, "", skip)][: len(seen)]
        wrong = [first + place for place, (one, other) in enumerate(zip(seen, wanted, strict=True)) if one != other]
        assert not wrong, wrong[:5]
        for place, key in enumerate(seen, first):
            assert places.setdefault(key, place) == place, f"{key} is at {places[key]} and {place}"
        stretch = stretch or len(seen)
        say(
            f"{order}, {at}: places {first:,} to {first + len(seen) - 1:,} by Page Down in {took_s:.0f} s "
            f"at {real[0]:.0f} updates/s: each once, in the order of sow"
        )
    say(f"{len(places):,} of {rows:,} rows were seen, each in one place")
    desk.page.set_viewport_size({"width": 1300, "height": 1_640})


def moving(desk: Desk, rows: int, rng: random.Random) -> None:
    """Random filters, in an order that updates change while the grid scrolls: at each pause it shows what sow has."""
    for text in ("", "/half < 20000", "/text = 't7'", "/open = TRUE AND /half > 150000", "/mixed IS NULL"):
        desk.filter(text)
        order = desk.sort("half", is_falling=rng.random() < 0.5)
        for _ in range(3):
            with desk.updates(300, 0, rows, "half") as real:
                for _ in range(6):
                    place = rng.randrange(max(1, desk.total - 60))
                    desk.page.evaluate(f"window.sowstreamPage.grid.api.ensureIndexVisible({place}, 'top')")
                    for _ in range(5):
                        desk.page.keyboard.press("PageDown")
                        desk.page.evaluate("new Promise((done) => requestAnimationFrame(done))")
                        keys = [key for _, key in desk.page.evaluate(SIGHT, "/id") if key]
                        assert len(set(keys)) == len(keys), keys
            sight = desk.sight()
            wanted = desk.sow(order, text, sight[0][0], len(sight))
            assert [key for _, key in sight] == wanted, (order, text, sight, wanted)
        say(f"{text or 'no filter'}, {order}, {desk.total:,} rows, {real[0]:.0f} moving updates/s: right at each pause")
    desk.filter("")


def frames(desk: Desk, rows: int, _rng: random.Random) -> None:
    """Frames a second with 50 rows in view."""
    page = desk.page
    protocol = page.context.new_cdp_session(page)
    protocol.send("Performance.enable", {"timeDomain": "threadTicks"})

    def work_s() -> float:
        """The processor time of the page's main thread."""
        metrics = protocol.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    order = desk.sort("id", is_falling=False)
    page.evaluate("window.sowstreamPage.grid.api.ensureIndexVisible(0, 'top')")
    desk.sight()
    for rate, count, what in (
        (1, rows, "no updates"),
        (10_000, rows, "10,000 updates/s over all rows"),
        (10_000, 100, "10,000 updates/s of 100 rows, 50 of them in view"),
        (10_000, 50, "10,000 updates/s of the 50 rows in view"),
    ):
        with desk.updates(rate, 0, count) as real:
            page.wait_for_timeout(2_000)
            began_s = work_s()
            seen = page.evaluate(FRAMES, 10)
            busy = (work_s() - began_s) / 10
            lag = page.inner_text("#lag")
        say(
            f"{what} (really {real[0]:,.0f}), {len(desk.sight())} rows in view, {order}: "
            f"{seen['frames']:.0f} frames/s, gap p99 {seen['p99']:.0f} ms, longest {seen['longest']:.0f} ms, lag {lag} "
            f"and {busy:.0%} of a processor"
        )


if __name__ == "__main__":
    main()
