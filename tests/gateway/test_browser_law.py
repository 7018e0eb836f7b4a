"""The law of composition in a real Chromium: after random steps each view of the JavaScript client is right."""

from __future__ import annotations

import random
import time

import pytest

from tests.gateway.memory import MemoryWorld
from tests.gateway.test_page import PATIENCE_MS, browser, pytestmark  # noqa: F401 - A fixture, and its needs.
from tests.programs.gateway.queries import FILTERS, ORDERS, RIGHTS, SELECTS, Query

STEPS = 2_000
KEYS = [str(number) for number in range(7)]
BEGIN = """async () => {
  const { connect } = await import('/sowstream.js');
  window.sockets = [];
  class Kept extends WebSocket { constructor(...settings) { super(...settings); window.sockets.push(this); } }
  window.client = await connect({ url: location.href, WebSocket: Kept, backoffMin: 5, backoffMax: 20 });
  window.views = {};
}"""


def holds(page, name, query, wanted):
    """Wait until a view holds the records of an answer: the part of them that its own select list includes."""
    until_s = time.monotonic() + PATIENCE_MS / 1000
    while True:
        held = page.evaluate("(name) => Object.fromEntries(window.views[name])", name)
        own = {key: SELECTS[query.select](record) for key, record in held.items()}
        if own == wanted:
            return
        assert time.monotonic() < until_s, (name, query, own, wanted)
        page.wait_for_timeout(20)


def options_of(query):
    """A query as the client's options."""
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


def random_query(rng, *, is_window):
    """A random query of a view."""
    return Query(
        rng.choice(list(FILTERS)),
        rng.choice(list(SELECTS)),
        rng.choice(list(ORDERS)) if is_window else None,
        rng.randrange(1, 5) if is_window else None,
        rng.randrange(3) if is_window else 0,
        True,
        True,
        rng.random() < 0.3,
        rng.choice([None, None, "100ms", "auto"]),
        RIGHTS[0],
    )


@pytest.mark.timeout(3600)
def test_views_in_a_browser_are_right_after_random_steps(browser, random_seed):  # noqa: F811
    """After random updates, breaks, replaces and closings each view equals its query, as plain Python answers it."""
    rng = random.Random(random_seed)
    world = MemoryWorld()
    try:
        page = browser.new_page(bypass_csp=True)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"http://{world.gateway.address}/icon.svg")
        page.evaluate(BEGIN)
        now, queries, number, checks = {}, {}, 0, 0
        for _ in range(STEPS):
            chance = rng.random()
            if chance < 0.80 or not queries:
                write(rng, world, now)
            if chance < 0.84:
                if len(queries) < 6 and (chance >= 0.80 or not queries):
                    number += 1
                    query = queries[f"v{number}"] = random_query(rng, is_window=rng.random() < 0.4)
                    page.evaluate(
                        "([name, options]) => { window.views[name] = window.client.view('orders', options); }",
                        [f"v{number}", options_of(query)],
                    )
            elif chance < 0.88:
                page.evaluate("() => { for (const one of window.sockets.splice(0)) one.close(); }")
            elif chance < 0.92:
                name = rng.choice(list(queries))
                old = queries[name]
                fresh = random_query(rng, is_window=old.is_window)._replace(
                    select=old.select, no_empties=old.no_empties, conflation=old.conflation
                )
                changes = {"filter": fresh.filter or ""}
                if old.is_window:
                    changes |= {"orderBy": fresh.order, "top": fresh.top, "skip": fresh.skip}
                replaced = "([name, changes]) => window.views[name].replace(changes).then(() => true, () => false)"
                if page.evaluate(replaced, [name, changes]):
                    queries[name] = fresh
                else:  # The connection was being restored: the view is as it was.
                    page.wait_for_function("window.client.state === 'open'")
            elif chance < 0.94 and len(queries) > 2:
                name = rng.choice(list(queries))
                del queries[name]
                page.evaluate("(name) => { window.views[name].close(); delete window.views[name]; }", name)
            elif chance >= 0.97:
                for name, query in queries.items():
                    holds(page, name, query, query.answer(now))
                    checks += 1
        assert checks > 50
        page.close()
    finally:
        world.close()


def write(rng, world, now):
    """Write a record or a tombstone."""
    key = rng.choice(KEYS)
    if key in now and rng.random() < 0.15:
        del now[key]
        world.delete(key)
        return
    body = {"id": key}
    for name in ("a", "n"):
        if rng.random() < 0.8:
            body[name] = rng.randrange(4)
    if rng.random() < 0.8:
        body["s"] = rng.choice("xyz")
    if rng.random() < 0.5:
        body["o"] = {name: rng.randrange(2) for name in "pq" if rng.random() < 0.7}
    now[key] = body
    world.gateway.call(lambda: world.feeds["orders"].write(key, body))


def test_the_quote_story(browser):  # noqa: F811
    """EURUSD: a full quote, then a delta with the changed field alone, merged for a page that joins late."""
    world = MemoryWorld("orders", "quotes")
    quote = {"id": "EURUSD", "bid": 1.085, "offer": 1.0854, "size": {"bid": 5, "offer": 3}}
    try:
        desk, publisher, late = (browser.new_page(bypass_csp=True) for _ in range(3))
        for page in (desk, publisher, late):
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"http://{world.gateway.address}/icon.svg")
            page.evaluate(BEGIN)
        desk.evaluate("""async () => {
          window.view = window.client.view('quotes', { filter: "/id = 'EURUSD'" });
          await window.view.ready;
          window.changes = [];
          window.view.addEventListener('change', ({ changes }) => window.changes.push(...changes));
        }""")
        publish = "([quote, options]) => window.client.publish('quotes', quote, { ack: 'persisted', ...options })"
        publisher.evaluate(publish, [quote, {}])
        desk.wait_for_function("window.view.get('EURUSD')?.offer === 1.0854")
        publisher.evaluate(publish, [{"id": "EURUSD", "offer": 1.0852}, {"allowMerge": True}])
        desk.wait_for_function("window.view.get('EURUSD').offer === 1.0852")
        assert desk.evaluate("window.view.get('EURUSD')") == {**quote, "offer": 1.0852}
        assert sorted(desk.evaluate("window.changes.at(-1).changed")) == ["/id", "/offer"]
        joined = """async () => {
          const view = window.client.view('quotes');
          await view.ready;
          return view.get('EURUSD');
        }"""
        assert late.evaluate(joined) == {**quote, "offer": 1.0852}
        for page in (desk, publisher, late):
            page.close()
    finally:
        world.close()


def test_the_order_story_with_a_browser_as_fulfilment(browser):  # noqa: F811
    """A browser that waits for both checks gets the whole order once, ships it, and loses it from its view."""
    world = MemoryWorld()
    try:
        page = browser.new_page(bypass_csp=True)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"http://{world.gateway.address}/icon.svg")
        page.evaluate(BEGIN)
        page.evaluate("""async () => {
          const filter = "/state = 'new' AND /inventory IS NOT NULL AND /credit IS NOT NULL";
          window.changes = [];
          window.view = window.client.view('orders', { filter });
          await window.view.ready;
          window.view.addEventListener('change', async ({ changes }) => {
            window.changes.push(...changes.map(({ type, key, record }) => ({ type, key, record: { ...record } })));
            for (const { type, key } of changes) {
              const shipped = { id: 1, state: 'shipped' };
              if (type === 'add') await window.client.publish('orders', shipped, { allowMerge: true });
            }
          });
        }""")
        client = world.connect()
        order = {"id": 1, "customer": "c1", "item": "bolt", "qty": 5, "state": "new"}
        assert client.ask("publish", topic="orders", data=order, ack="persisted")["status"] == "success"
        for checked in ({"id": 1, "inventory": "ok"}, {"id": 1, "credit": "ok"}):
            assert client.ask("delta_publish", topic="orders", data=checked, ack="persisted")["status"] == "success"
        page.wait_for_function("window.changes.length === 2")
        added, removed = page.evaluate("window.changes")
        assert (added["type"], added["record"]) == ("add", {**order, "inventory": "ok", "credit": "ok"})
        assert (removed["type"], removed["key"]) == ("remove", "1")
        page.close()
    finally:
        world.close()
