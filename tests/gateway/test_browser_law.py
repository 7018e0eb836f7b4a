"""The law of composition in a real Chromium: after random steps each view of the JavaScript client is right."""

from __future__ import annotations

import pytest

from tests.gateway.browsing import NEEDS, PATIENCE_MS
from tests.gateway.memory import MemoryWorld
from tests.gateway.test_composition import ENDS
from tests.programs.gateway.outages import in_page, run

pytestmark = NEEDS
BEGIN = """async () => {
  const { connect } = await import('/sowstream.js');
  window.client = await connect({ url: location.origin });
}"""


@ENDS
@pytest.mark.timeout(3600)
def test_views_in_a_browser_are_right_after_random_outages(browser, random_seed, steps):
    """After random updates, outages, replaces and closings each view equals its query at its bookmark, and then now."""
    page = browser.new_page(bypass_csp=True)
    page.set_default_timeout(PATIENCE_MS)
    outages = run(steps(10_000), random_seed, lambda address: in_page(page, address))
    page.close()
    assert outages.checks > steps(250)
    assert outages.compared > steps(250)


def test_the_quote_story(browser):
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
        assert desk.evaluate("window.changes.at(-1).changed") == ["/offer"]
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


def test_the_order_story_with_a_browser_as_fulfilment(browser):
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
