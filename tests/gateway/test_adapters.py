"""The adapters for AG Grid and Perspective, each in its page in a real Chromium."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from processor.codec.json import JsonCodec
from processor.gateway.application import WEB
from tests import waiting
from tests.gateway.browsing import NEEDS, PATIENCE_MS
from tests.gateway.memory import MemoryWorld
from tests.gateway.test_digits import RECORD

pytestmark = NEEDS
MODULES = WEB / "adapters" / "node_modules"


@pytest.fixture
def empty_world():
    """A gateway with a topic without records."""
    made = MemoryWorld()
    yield made
    made.close()


@pytest.fixture
def world(empty_world):
    """A gateway with a few orders."""
    for key in "abc":
        empty_world.put(key, qty=ord(key), customer=f"c{key}")
    return empty_world


ROWS = """window.sowstreamGrid.table.view().then(async (view) => {
  const rows = await view.to_json();
  await view.delete();
  return rows;
})"""
"""The rows of Perspective's table, read through a view of their own."""


def until(page, expression):
    """Wait until a promise gives something true: `wait_for_function` takes the promise itself for it."""
    waiting.until(lambda: page.evaluate(expression) or page.wait_for_timeout(20), expression, pause_s=0)


def opened(browser, world, name):
    """A page of an adapter, live."""
    page = browser.new_page(bypass_csp=True)
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"http://{world.gateway.address}/adapters/{name}.html#topic=orders")
    page.wait_for_function("Boolean(window.sowstreamGrid)")
    return page


@pytest.mark.skipif(not (MODULES / "ag-grid-community").exists(), reason="npm ci in processor/gateway/web/adapters")
def test_ag_grid_follows_a_view(browser, world):
    """AG Grid shows the records of a view, their changes, and loses the rows that leave."""
    page = opened(browser, world, "ag-grid")
    count = "window.sowstreamGrid.api.getDisplayedRowCount()"
    page.wait_for_function(f"{count} === 3")
    world.put("a", qty=7, customer="ca")
    world.put("d", qty=1, customer="cd")
    world.delete("b")
    page.wait_for_function("window.sowstreamGrid.api.getRowNode('a').data.qty === 7")
    page.wait_for_function("!window.sowstreamGrid.api.getRowNode('b') && window.sowstreamGrid.api.getRowNode('d')")
    assert page.evaluate(count) == 3
    assert page.inner_text("h1").split() == ["orders", "(open)"]
    assert "ag-right-aligned-cell" in page.get_attribute('.ag-cell[col-id="qty"] >> nth=0', "class")
    dark = "getComputedStyle(document.querySelector('.ag-root-wrapper')).backgroundColor"
    light = page.evaluate(dark)
    page.emulate_media(color_scheme="dark")
    page.reload()
    page.wait_for_function(f"window.sowstreamGrid && {dark} !== '{light}'")
    page.close()


@pytest.mark.skipif(not (MODULES / "@perspective-dev" / "viewer").exists(), reason="npm ci in web/adapters")
def test_perspective_follows_a_view(browser, world):
    """A Perspective table has the records of a view, their changes, and loses the rows that leave."""
    page = opened(browser, world, "perspective")
    assert {row["sowKey"]: row["qty"] for row in page.evaluate(ROWS)} == {"a": 97, "b": 98, "c": 99}
    world.put("a", qty=7, customer="ca")
    world.delete("b")
    until(page, f"{ROWS}.then((rows) => rows.length === 2 && rows.some((row) => row.qty === 7))")
    page.close()


@pytest.mark.skipif(not (MODULES / "@perspective-dev" / "viewer").exists(), reason="npm ci in web/adapters")
def test_perspective_shows_numbers_as_they_are(browser, world):
    """A number has its decimals and groups of three, and one that names something has none of either."""
    world.put("a", price=1234.0625, trade_id=1234)
    page = opened(browser, world, "perspective")
    page.wait_for_selector("regular-table td >> text=/^1,234.0625$/")
    page.wait_for_selector("regular-table td >> text=/^1234$/")
    page.close()


@pytest.mark.skipif(not (MODULES / "@perspective-dev" / "viewer").exists(), reason="npm ci in web/adapters")
def test_perspective_has_keys_in_their_order(browser, empty_world):
    """Records stand in the order of their keys, numbers as numbers, also where the topic was empty at first."""
    page = opened(browser, empty_world, "perspective")
    for key in (10, 9, 100):
        empty_world.put(key, qty=1)
    column = page.locator("regular-table tbody tr td:first-child")
    waiting.until(lambda: column.all_inner_texts() == ["9", "10", "100"], column.all_inner_texts, pause_s=0.1)
    page.close()


@pytest.mark.skipif(not (MODULES / "ag-grid-community").exists(), reason="npm ci in processor/gateway/web/adapters")
def test_ag_grid_shows_every_digit(browser, world):
    """AG Grid shows and sorts numbers with every digit, and a field that appears later is a column."""
    page = opened(browser, world, "ag-grid")
    world.put("d", qty=9007199254740993)
    world.put("e", qty=9007199254740992)
    value = JsonCodec().decode(RECORD.encode())
    world.gateway.call(lambda: world.feeds["orders"].write("x", value | {"a.b": 1, "qty": value["long"]}))
    shown = "(key, field) => { const { api } = window.sowstreamGrid; const node = api.getRowNode(key); return node && "
    shown += "api.getColumn(field) && api.getCellValue({ rowNode: node, colKey: field, useFormatter: true }); }"
    page.wait_for_function(f"({shown})('x', 'a.b') === '1'")
    texts = {"big": "9007199254740993", "price": "12345678901234567890.12", "huge": "1E+400", "minus": "-0.0"}
    assert {field: page.evaluate(f"({shown})('x', '{field}')") for field in texts} == texts
    page.evaluate("window.sowstreamGrid.api.applyColumnState({ state: [{ colId: 'qty', sort: 'asc' }] })")
    order = "[0, 1, 2, 3, 4, 5].map((at) => window.sowstreamGrid.api.getDisplayedRowAtIndex(at).id).join('')"
    page.wait_for_function(f"{order} === 'xabced'")
    page.close()


@pytest.mark.skipif(not (MODULES / "@perspective-dev" / "viewer").exists(), reason="npm ci in web/adapters")
def test_perspective_has_columns_by_the_first_value_that_has_a_kind(browser, empty_world):
    """Of a topic that was empty, fields are columns as they appear, by their first value that is not null.

    Also if a table that was replaced is never deleted: Perspective's promise does not end while a call on it goes on.
    """
    world = empty_world
    page = opened(browser, world, "perspective")
    page.evaluate("void (window.sowstreamGrid.table.delete = () => new Promise(() => undefined))")
    schema = "window.sowstreamGrid.table.schema()"
    assert page.evaluate(schema) == {"sowKey": "string"}
    world.put("a", qty=None, sowKey="z")
    world.put("b", qty=7, open=True)
    until(page, f"{schema}.then((schema) => schema.qty === 'float' && schema.open === 'boolean')")
    until(page, f"{ROWS}.then((rows) => rows.length === 2 && rows[1].qty === 7 && rows[0].sowKey === 'a')")
    value = JsonCodec().decode(RECORD.encode())
    world.gateway.call(lambda: world.feeds["orders"].write("x", value | {"qty": value["long"]}))
    until(page, f"{ROWS}.then((rows) => rows.length === 3 && rows[1].qty === '7')")
    held = {row["sowKey"]: row for row in page.evaluate(ROWS)}
    wanted = ("0.1234567890123456789", "9007199254740993", "1E+400")
    assert tuple(held["x"][name] for name in ("qty", "big", "huge")) == wanted
    world.delete("b")
    until(page, f"{ROWS}.then((rows) => rows.length === 2)")
    page.close()


@pytest.mark.parametrize(
    ("path", "drawn", "package"),
    [
        ("#topic=orders", ".ag-row", "ag-grid-community"),
        ("adapters/ag-grid.html#topic=orders", ".ag-row", "ag-grid-community"),
        ("adapters/perspective.html#topic=orders", "perspective-viewer-datagrid", "@perspective-dev"),
    ],
)
def test_pages_obey_their_security_policy(browser, world, path, drawn, package):
    """Each page works under the headers that the gateway sends, and asks no other host for anything."""
    if not (MODULES / package).exists():
        pytest.skip("npm ci in processor/gateway/web/adapters")
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    faults, hosts = [], set()
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.goto(f"http://{world.gateway.address}/{path}")
    page.wait_for_selector(drawn, state="attached")
    page.close()
    assert faults == []
    assert hosts - {""} == {world.gateway.address}
