"""The law of gateway.md, rule 6, for the clients themselves: after any outage each view is its query at its bookmark.

A gateway over a topic in memory, behind a proxy that fails, and one client: Python, JavaScript in Node, or in Chromium.
Random updates, views, replaces and faults. Whenever a client has a bookmark, its records are compared with the query
over the topic at that place, also in the middle of an outage; after it every view must be live, and equal to now::

    python -m tests.programs.gateway.outages --client node --steps 20000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import yaml

from processor.client import Client
from processor.client.gateway.gateway_http import LinkTimes
from processor.gateway.access.requests import BadRequest
from tests.gateway.memory import PARTITIONS, MemoryWorld
from tests.gateway.proxy import FaultyProxy
from tests.programs.gateway.composition import check
from tests.programs.gateway.holder import Holder
from tests.programs.gateway.queries import FILTERS, KEYS, ORDERS, RIGHTS, SELECTS, Query
from tests.programs.gateway.world import History, random_body

PATIENCE_S = 120.0
TOKEN = "t-root"
SETTINGS = {
    "token": TOKEN,
    "backoffMin": 5,
    "backoffMax": 40,
    "silence": 150,
    "openTimeout": 400,
    "answerTimeout": 2000,
}
"""Of the JavaScript client, milliseconds."""
TIMES = LinkTimes(backoff_s=0.005, backoff_max_s=0.04, open_s=0.4, first_s=60.0, silence_s=0.15, answer_s=2.0)
"""The same of the Python client."""
CLIENT_FILE = Path(__file__).parents[2] / "gateway" / "js" / "outages_client.mjs"


class Driven(Protocol):
    """A client that the program drives."""

    has_replace: bool
    """Whether its views can be replaced."""

    def begin(self, name: str, query: Query) -> None:
        """Begin a view."""

    def replace(self, name: str, changes: dict[str, Any]) -> None:
        """Change a view."""

    def end(self, name: str) -> None:
        """End a view."""

    def busy(self, seconds: float) -> None:
        """Let the client read nothing for a while."""

    def state(self) -> dict[str, Any]:
        """Its state, the errors of its views, and what each of them holds."""

    def close(self) -> None:
        """End the client."""


class JavaScriptClient:
    """A client in JavaScript, by calls that a page or Node carries out for it."""

    has_replace = True

    def __init__(self, call: Callable[..., Any], close: Callable[[], None]) -> None:
        self._call, self.close = call, close
        call("open")

    def begin(self, name: str, query: Query) -> None:
        """Begin a view."""
        self._call("begin", name, options_of(query))

    def replace(self, name: str, changes: dict[str, Any]) -> None:
        """Change a view."""
        self._call("replace", name, changes)

    def end(self, name: str) -> None:
        """End a view."""
        self._call("end", name)

    def busy(self, seconds: float) -> None:
        """Block its event loop."""
        self._call("busy", seconds * 1000)

    def state(self) -> dict[str, Any]:
        """Its state."""
        state: dict[str, Any] = self._call("state")
        return state


def in_node(address: str) -> JavaScriptClient:
    """A client in a process of Node."""
    settings = json.dumps({"url": f"http://{address}", **SETTINGS})
    process = subprocess.Popen(
        ["node", "--experimental-websocket", "--no-warnings", str(CLIENT_FILE), settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answers = process.stdin, process.stdout

    def call(*fields: Any) -> Any:
        asked.write(json.dumps(fields) + "\n")
        asked.flush()
        return json.loads(answers.readline())

    def close() -> None:
        asked.close()
        process.wait(30)
        answers.close()

    return JavaScriptClient(call, close)


def in_page(page: Any, address: str) -> JavaScriptClient:
    """A client in a page of a browser."""
    page.goto(f"http://{address}/icon.svg")
    page.evaluate(
        """async ([source, settings]) => {
          const { connect } = await import('/sowstream.js');
          const file = URL.createObjectURL(new Blob([source], { type: 'text/javascript' }));
          const { driven } = await import(file);
          window.driven = driven(connect, { url: location.origin, ...settings });
        }""",
        [CLIENT_FILE.read_text(), SETTINGS],
    )
    call = "async ([name, ...fields]) => (await window.driven[name](...fields)) ?? null"
    return JavaScriptClient(lambda *fields: page.evaluate(call, list(fields)), lambda: None)


class PythonClient:
    """The Python client; it reads when its state is asked for."""

    has_replace = False

    def __init__(self, address: str) -> None:
        self._client = Client("law", gateway=f"http://{address}", token=TOKEN)
        self._client._reader.times = TIMES  # type: ignore[attr-defined]
        self._views: dict[str, tuple[Any, Holder]] = {}
        self._errors: dict[str, str] = {}

    def begin(self, name: str, query: Query) -> None:
        """Begin a view."""
        arguments = {
            "select": query.select,
            "order_by": query.order,
            "top_n": query.top,
            "skip_n": query.skip or None,
            "conflation": query.conflation,
            "no_empties": query.no_empties or None,
        }
        given = {option: value for option, value in arguments.items() if value is not None}
        subscription = self._client.sow_and_delta_subscribe("orders", query.filter, oof=True, **given)
        self._views[name] = subscription, Holder(query)

    def replace(self, name: str, changes: dict[str, Any]) -> None:
        """Views of this client cannot be replaced."""
        raise NotImplementedError

    def end(self, name: str) -> None:
        """End a view."""
        subscription, _ = self._views.pop(name)
        subscription.close()

    def busy(self, seconds: float) -> None:
        """Read nothing."""
        time.sleep(seconds)

    def state(self) -> dict[str, Any]:
        """Take what has come, and return its state."""
        views = {}
        for name, (subscription, holder) in self._views.items():
            feed = subscription._topic_feed
            try:
                while messages := feed.fetch(0.001):
                    for message in messages:
                        holder.hear(message)
            except Exception as error:  # noqa: BLE001 - The program says that there may be none.
                self._errors[name] = str(error)
            [served] = feed._served.values() or [SimpleNamespace(bookmark=None)]
            views[name] = {
                "held": holder.held,
                "bookmark": served.bookmark if holder.is_whole and holder.stale is None else None,
                "live": feed.is_live,
                "changing": 0,
            }
        return {"state": "", "errors": self._errors, "views": views}

    def close(self) -> None:
        """End it."""
        self._client.close()


class Outages:
    """A gateway, its proxy, and the faults of both."""

    def __init__(self, seed: int, connect: Callable[[str], Driven]) -> None:
        self.random = random.Random(seed)
        self.directory = tempfile.TemporaryDirectory(prefix="sowstream-outages-")
        tokens, rights = Path(self.directory.name) / "tokens.yaml", Path(self.directory.name) / "rights.yaml"
        tokens.write_text(yaml.safe_dump({TOKEN: {"user": "root"}}))
        rights.write_text(yaml.safe_dump({"users": {"root": {"orders": {"read": True}}}}))
        self.world = MemoryWorld(auth={"tokens_file": tokens}, entitlements=rights, limits={"queue_bytes": 20_000})
        self.proxy = FaultyProxy(self.world.gateway.port)
        self._be_quick()
        self.history = History(PARTITIONS)
        self.now: dict[str, Any] = {}
        self.queries: dict[str, Query] = {}
        self.named = self.checks = self.compared = 0
        self.faults: Counter[str] = Counter()
        self.client = connect(self.proxy.address)

    def close(self) -> None:
        """End everything."""
        self.client.close()
        self.proxy.close()
        self.world.close()
        self.directory.cleanup()

    def step(self) -> None:
        """One random step."""
        chance = self.random.random()
        if chance < 0.82 or not self.queries:
            self.write()
        if chance < 0.86:
            if len(self.queries) < 6 and (chance >= 0.82 or not self.queries):
                self.begin()
        elif chance < 0.89:
            if self.client.has_replace:
                self.replace()
        elif chance < 0.91:
            self.end()
        elif chance < 0.94:
            self.fail()
        elif chance < 0.98:
            self.look()
        else:
            self.settle()

    def write(self) -> None:
        """A worker writes a record or a tombstone."""
        key = self.random.choice(KEYS)
        if key in self.now and self.random.random() < 0.15:
            body = None
            del self.now[key]
        else:
            body = self.now[key] = random_body(self.random, key, self.now.get(key))
        self.history.note(key, body)
        self.world.gateway.call(lambda: self.world.feeds["orders"].write(key, body))

    def begin(self) -> None:
        """A client begins a view."""
        self.named += 1
        name = f"v{self.named}"
        self.queries[name] = self.query(is_window=self.random.random() < 0.4)
        self.client.begin(name, self.queries[name])

    def query(self, *, is_window: bool) -> Query:
        """A random query."""
        choice, chance = self.random.choice, self.random.random
        return Query(
            choice(list(FILTERS)),
            choice(list(SELECTS)),
            choice(list(ORDERS)) if is_window else None,
            self.random.randrange(1, 5) if is_window else None,
            self.random.randrange(3) if is_window else 0,
            is_delta=True,
            oof=True,
            no_empties=chance() < 0.3,
            conflation=choice([None, None, "100ms", "auto"]),
            right=RIGHTS[0],
        )

    def replace(self) -> None:
        """A client changes a view."""
        name = self.random.choice(list(self.queries))
        old = self.queries[name]
        fresh = self.query(is_window=old.is_window)
        fresh = fresh._replace(select=old.select, no_empties=old.no_empties, conflation=old.conflation)
        changes: dict[str, Any] = {"filter": fresh.filter or ""}
        if old.is_window:
            changes |= {"orderBy": fresh.order, "top": fresh.top, "skip": fresh.skip}
        self.queries[name] = fresh
        self.client.replace(name, changes)

    def end(self) -> None:
        """A client ends a view."""
        if len(self.queries) > 2:
            name = self.random.choice(list(self.queries))
            del self.queries[name]
            self.client.end(name)

    def fail(self) -> None:
        """Something fails for a while; updates go on."""
        faults = [self.cut, self.freeze, self.closed, self.view, self.engine, self.token, self.keys, self.slow]
        fault = self.restart if self.random.random() < 0.06 else self.random.choice(faults)
        self.faults[fault.__name__] += 1
        fault()

    def cut(self) -> None:
        """All connections are lost."""
        self.proxy.cut()

    def freeze(self) -> None:
        """All connections are dead without a word."""
        self.proxy.freeze()
        self.last(0.4)

    def closed(self) -> None:
        """The gateway cannot be reached: refused, silent, or 503 from a proxy."""
        self.proxy.mode = self.random.choice(["refuse", "silent", "503"])
        self.proxy.cut()
        self.last(0.4)
        self.proxy.mode = "pass"

    def view(self) -> None:
        """The view of the gateway is not there; sometimes clients ask for it meanwhile."""
        feed, gateway = self.world.feeds["orders"], self.world.gateway
        gateway.call(feed.hold)
        if self.random.random() < 0.7:
            self.proxy.cut()
        self.last(0.3)
        gateway.call(feed.restart)

    def engine(self) -> None:
        """The view of the gateway is built again."""
        self.world.gateway.call(self.world.feeds["orders"].restart)

    def token(self) -> None:
        """The tokens of all sessions expire."""
        gateway = self.world.gateway
        gateway.call(lambda: [session.expire() for session in list(gateway.gateway.sessions)])

    def keys(self) -> None:
        """Tokens cannot be verified."""
        gateway = self.world.gateway.gateway
        verify = gateway.verify

        async def unavailable(_token: str | None) -> Any:
            raise BadRequest("unavailable", "the issuer's keys cannot be fetched now")

        gateway.verify = unavailable  # type: ignore[assignment]
        self.proxy.cut()
        self.last(0.2)
        gateway.verify = verify  # type: ignore[method-assign]

    def slow(self) -> None:
        """The client reads nothing while there are many updates."""
        for _ in range(self.random.randrange(100)):
            self.write()
        self.client.busy(self.random.random() * 0.3)

    def restart(self) -> None:
        """The gateway ends, and starts again."""
        self.world.restart()
        self.proxy.target = self.world.gateway.port
        self._be_quick()

    def last(self, longest_s: float) -> None:
        """Let a fault last, with updates and looks at the client."""
        until_s = time.monotonic() + self.random.random() * longest_s
        while time.monotonic() < until_s:
            self.write()
            self.look()
            time.sleep(0.005)

    def look(self) -> dict[str, Any]:
        """Compare what each view holds with its query at its bookmark."""
        state = self.client.state()
        assert not state["errors"], state["errors"]
        for name, view in state["views"].items():
            if view["bookmark"] is not None and not view["changing"]:
                self.checks += 1
                check(name, self.queries[name], view["held"], bookmark_of(view["bookmark"]), self.history)
        return state

    def settle(self) -> None:
        """Without a fault every view is live again, and equal to its query now."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            state = self.look()
            wrong = [name for name, query in self.queries.items() if not self.is_whole(query, state["views"][name])]
            if not wrong:
                break
            assert time.monotonic() < until_s, {
                name: (self.queries[name], state["views"][name], self.queries[name].answer(self.now)) for name in wrong
            }
            time.sleep(0.01)
        self.compared += len(self.queries)

    def is_whole(self, query: Query, view: dict[str, Any]) -> bool:
        """Return whether a view is live, and has the records of now."""
        own = {key: SELECTS[query.select](record) for key, record in view["held"].items()}
        return bool(view["live"]) and not view["changing"] and own == query.answer(self.now)

    def _be_quick(self) -> None:
        self.world.gateway.gateway.ready_timeout_s = 0.05


def options_of(query: Query) -> dict[str, Any]:
    """A query as the JavaScript client's options."""
    return {
        name: value
        for name, value in {
            "filter": query.filter or "",
            "select": query.select,
            "orderBy": query.order,
            "top": query.top,
            "skip": query.skip,
            "conflation": query.conflation,
            "noEmpties": query.no_empties or None,
        }.items()
        if value not in (None, 0)
    }


def bookmark_of(text: str) -> Any:
    """The places of a bookmark."""
    places = [place.partition("-") for place in text.split(".")[2:]]
    low = {number: int(place[0]) for number, place in enumerate(places)}
    return SimpleNamespace(low=low, high={number: int(place[2] or place[0]) for number, place in enumerate(places)})


def run(steps: int, seed: int, connect: Callable[[str], Driven]) -> Outages:
    """Run so many steps; returns the world with its counts, which has ended."""
    outages = Outages(seed, connect)
    try:
        for number in range(steps):
            try:
                outages.step()
            except BaseException:
                print(f"failed at step {number}, seed {seed}, after {dict(outages.faults)}")
                raise
            if sys.stderr.isatty():
                print(f"\r{number:,} of {steps:,} steps", end="", file=sys.stderr)
        outages.settle()
    finally:
        outages.close()
    return outages


def in_chromium(steps: int, seed: int) -> Outages:
    """Run with a client in Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_S * 1000
        )
        page = browser.new_page(bypass_csp=True)
        page.set_default_timeout(PATIENCE_S * 1000)
        try:
            return run(steps, seed, lambda address: in_page(page, address))
        finally:
            browser.close()


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", choices=["python", "node", "chromium"], default="node")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    began_s = time.monotonic()
    if arguments.client == "chromium":
        outages = in_chromium(arguments.steps, arguments.seed)
    else:
        outages = run(arguments.steps, arguments.seed, in_node if arguments.client == "node" else PythonClient)
    faults = ", ".join(f"{count} {name}" for name, count in sorted(outages.faults.items()))
    print(
        f"{arguments.client}: {arguments.steps:,} steps in {time.monotonic() - began_s:.0f} s, seed {arguments.seed}: "
        f"{outages.checks:,} checks at bookmarks, {outages.compared:,} of views live again; faults: {faults}: "
        "every client was right"
    )


if __name__ == "__main__":
    main()
