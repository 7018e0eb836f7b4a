"""The page of the gateway in a real Chromium: its live grid, query, link and looks."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from processor.gateway import endpoints
from processor.gateway.application import WEB
from tests.gateway.memory import MemoryWorld
from tests.waiting import until

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
LIBRARY = WEB / "adapters/node_modules/ag-grid-community/dist/ag-grid-community.min.noStyle.js"
PERSPECTIVE = WEB / "adapters/node_modules/@perspective-dev/viewer"
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="chromium is not installed: apt-get install chromium"),
    pytest.mark.skipif(not LIBRARY.exists(), reason="npm ci in processor/gateway/web/adapters"),
    pytest.mark.long,
    pytest.mark.timeout(900),
]
PATIENCE_MS = int(os.environ.get("SOWSTREAM_PATIENCE_MS", "180000"))
SHOTS = os.environ.get("SOWSTREAM_SHOTS")
"""The directory of the pages' pictures, `processor/docs/pictures`, to take them again; none: none are taken."""
SETTLED = "window.sowstreamPage.grid?.isSettled"
SIGHT = """(column) => {
  const top = document.querySelector('#grid .ag-header').getBoundingClientRect().bottom - 1;
  const bottom = document.querySelector('#grid .ag-grid-viewport').getBoundingClientRect().bottom + 1;
  const rows = [...document.querySelectorAll('#grid .ag-row')].filter((row) => {
    const box = row.getBoundingClientRect();
    return box.top >= top && box.bottom <= bottom;
  }).map((row) => {
    const text = row.querySelector(`[col-id="${column}"]`)?.textContent ?? null;
    return [Number(row.getAttribute('row-index')), text];
  });
  return rows.sort(([one], [other]) => one - other);
}"""
"""The places and the texts of a column of the rows that are wholly in sight, from the top."""
HINTS_FIT = """[...document.querySelectorAll('input[placeholder]')].filter((field) => {
  const pen = document.createElement('canvas').getContext('2d');
  const look = getComputedStyle(field);
  pen.font = look.font;
  const room = field.clientWidth - parseFloat(look.paddingLeft) - parseFloat(look.paddingRight);
  return pen.measureText(field.placeholder).width > room;
}).map((field) => field.placeholder)"""
"""The hints of empty fields that are cut."""


@pytest.fixture(scope="module")
def browser():
    """A real Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_MS
        )
        yield opened
        opened.close()


def order(key, **changes):
    """The fields of an order."""
    return {
        "id": f"{key:04d}",
        "customer": ("Ada", "Bo", "Cy", "Di")[key % 4],
        "symbol": ("EURUSD", "GBPUSD", "USDCHF")[key % 3],
        "side": ("buy", "sell")[key % 2],
        "qty": key * 37 % 1000 * 100,
        "price": round(1 + key * 7919 % 10_000 / 10_000, 4 - key % 2),
        "open": key % 3 == 0,
        "at": f"2026-11-27T09:{key % 60:02d}:46.{key:03d}+00:00",
        "state": "new",
        **changes,
    }


@pytest.fixture
def world():
    """A gateway with records."""
    made = MemoryWorld("orders", "quotes")
    made.gateway.call(lambda: [made.feeds["orders"].write(f"{key:04d}", order(key)) for key in range(200)])
    yield made
    made.close()


@pytest.fixture
def context(browser):
    """A browser's own storage, its zone and its size."""
    opened = browser.new_context(
        viewport={"width": 1100, "height": 620}, bypass_csp=True, timezone_id="Europe/Zurich", accept_downloads=True
    )
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    opened.close()


@pytest.fixture
def page(context, world):
    """The page with the orders, live."""
    opened = context.new_page()
    faults = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    go(opened, world, "topic=orders")
    yield opened
    assert not faults


def go(page, world, link, settled=True):
    """Open a link."""
    page.goto(f"http://{world.gateway.address}/#{link}")
    if settled:
        page.wait_for_function(SETTLED)
        page.wait_for_function("document.querySelectorAll('#grid .ag-row .ag-cell').length > 0")


def shot(page, name):
    """Take a picture of the pages, if they are wanted."""
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"gateway-{name}.png"))


def cell(row, column):
    """The selector of a cell."""
    return f'#grid .ag-row[row-index="{row}"] .ag-cell[col-id="{column}"]'


def header(column):
    """The selector of a column's header."""
    return f'#grid .ag-header-cell[col-id="{column}"] .ag-header-cell-text'


def text(page, row, column):
    """The text of a cell, without the room that aligns it."""
    return page.text_content(cell(row, column)).strip()


def until_text(page, row, column, wanted):
    """Wait until a cell has a text."""
    found = f"document.querySelector('{cell(row, column)}')?.textContent.trim()"
    page.wait_for_function(f"{found} === {json.dumps(wanted)}")


def ask(page, filter_text):
    """Apply a filter."""
    page.fill("#filter", filter_text)
    page.keyboard.press("Enter")


def linked(page):
    """The part of the link behind `#`."""
    return {name: value[0] for name, value in parse_qs(page.evaluate("location.hash").removeprefix("#")).items()}


def columns(page):
    """The names of the columns in sight, from the left."""
    return page.evaluate("window.sowstreamPage.grid.shownPaths")


def test_the_grid_shows_records_as_they_change(page, world):
    """The grid shows the first records by kind, and a number that rose or fell in its colour."""
    assert page.inner_text("#state") == "connected"
    assert page.inner_text("#rows") == "200"
    assert [text(page, 0, one) for one in ("/id", "/customer")] == ["0000", "Ada"]
    assert text(page, 1, "/qty") == "3,700"
    assert text(page, 1, "/at") == "2026-11-27 10:01:46.001"
    assert "kind-boolean" in page.get_attribute(cell(0, "/open"), "class")
    for qty, direction in ((4711, "up"), (4000, "down")):
        world.put("0000", **order(0, qty=qty))
        page.wait_for_selector(f"{cell(0, '/qty')}.ag-cell-data-changed.{direction}")
        until_text(page, 0, "/qty", f"{qty:,}")
    shot(page, "light")
    page.click("#theme")
    shot(page, "dark")


def test_a_number_that_flashes_keeps_its_arrow(page, world):
    """The arrow stays while its cell flashes, also if another cell changes; a number in a column of texts has one."""
    page.evaluate("window.sowstreamPage.grid.api.setGridOption('cellFlashDuration', 600_000)")
    flashing = ".ag-cell-data-changed"
    world.put("0000", **order(0, qty=4711))
    page.wait_for_selector(f"{cell(0, '/qty')}{flashing}.up")
    for state in (5, 7):
        world.put("0000", **order(0, qty=4711, state=state))
        until_text(page, 0, "/state", str(state))
    page.wait_for_selector(f"{cell(0, '/state')}{flashing}.up")
    assert page.locator(f"{cell(0, '/qty')}{flashing}.up").count() == 1


def test_rows_are_drawn_on_a_machine_that_is_slow(context, world):
    """A page whose drawing takes seconds shows its rows and their updates nevertheless."""
    slow = context.new_page()
    slow.add_init_script("const exact = performance.now.bind(performance); performance.now = () => exact() + 600_000;")
    go(slow, world, "topic=orders")
    world.put("0000", customer="Eve")
    until_text(slow, 0, "/customer", "Eve")


def test_a_filter_narrows_the_grid_and_its_error_shows_the_place(page):
    """A filter replaces the view in one step; a wrong one leaves it, and shows a caret below its place."""
    ask(page, "/qty >")
    page.wait_for_function("document.querySelector('#fault').textContent.includes('^')")
    shot(page, "fault")
    assert page.inner_text("#rows") == "200"
    ask(page, "/customer = 'Cy' AND /qty > 95000")
    page.wait_for_function("document.querySelector('#rows').textContent === '4'")
    page.wait_for_function("document.querySelector('#fault').textContent === ''")


def test_an_empty_grid_says_why(page, world):
    """The page names a field that no record has, a filter that nothing matches, and a topic without a record."""
    fault = "document.querySelector('#fault').textContent"
    ask(page, "/statee = 'new'")
    page.wait_for_function(f"{fault}.includes('has /statee. Did you mean /state?')")
    page.wait_for_function("document.querySelector('#rows').textContent === '0'")
    ask(page, "/state = 'gone'")
    page.wait_for_function(f"{fault} === 'No record matches the filter.'")
    ask(page, "")
    page.wait_for_function(f"{fault} === '' && document.querySelector('#rows').textContent === '200'")
    page.select_option("#topic", "quotes")
    page.wait_for_function(f"{fault} === 'quotes has no record.'")


def test_a_reason_that_comes_late_does_not_stand_over_rows(page):
    """The reason of an empty grid is not shown if there are rows by the time that it is known.

    It needs the first records without the filter, and these are held back here.
    """
    page.evaluate(
        "() => { const { connection } = window.sowstreamPage; const sow = connection.sow.bind(connection);"
        "const held = new Promise((resolve) => { window.release = resolve; });"
        "connection.sow = async (topic, options) => { if (!options.filter) await held; return sow(topic, options); }; }"
    )
    rows = "document.querySelector('#rows').textContent"
    ask(page, "/state = 'gone'")
    page.wait_for_function(f"{rows} === '0'")
    ask(page, "/state != 'gone'")
    page.wait_for_function(f"{rows} === '200'")
    # Answers come in the order of their requests, so the held one has been taken when this one is there.
    page.evaluate("window.release()")
    page.evaluate("window.sowstreamPage.connection.sow('orders', { top: 1, orderBy: '/id' })")
    assert page.inner_text("#fault") == ""


def test_fields_are_completed_in_the_filter(page):
    """The browser lists the filter with each field that begins as typed, also behind a condition; Tab takes one."""
    page.click("#filter")
    page.keyboard.type("/qty > 1 AND /s")
    listed = "[...document.querySelector('#filter').list.options].map((one) => one.value)"
    page.wait_for_function(f"{listed}.length === 3")
    assert sorted(page.evaluate(listed)) == [f"/qty > 1 AND /{field}" for field in ("side", "state", "symbol")]
    page.keyboard.type("y")
    page.keyboard.press("Tab")
    assert page.input_value("#filter") == "/qty > 1 AND /symbol"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") != "filter"


def test_rows_that_leave_show_their_reason(page, world):
    """A row that leaves the query is listed with its reason; rows that another query or scrolling removes are not."""
    ask(page, "/state = 'new' AND /id < '0100'")
    page.wait_for_function("document.querySelector('#rows').textContent === '100'")
    page.evaluate("window.sowstreamPage.grid.api.ensureIndexVisible(99)")
    page.wait_for_function(f"{SETTLED} && document.querySelector('#grid .ag-row[row-index=\"99\"]')")
    ask(page, "/state = 'new' AND /id < '0003'")
    page.wait_for_function("document.querySelector('#rows').textContent === '3'")
    world.delete("0001")
    world.put("0002", state="done")
    left = "[...document.querySelectorAll('#left li')].map((line) => line.textContent.slice(9))"
    page.wait_for_function(f"{left}.length === 2 && document.querySelector('#left-count').textContent === '2'")
    assert page.evaluate(left) == ["0002 does not match any more", "0001 was deleted"]


def test_the_keyboard_moves_edits_and_undoes(page, world):
    """Arrow keys move between cells; Enter edits one, which publishes a delta; Ctrl+Z takes it back."""

    def record():
        return json.loads(world.gateway.call(lambda: world.feeds["orders"].records[b"0001"].value))

    before = record()
    page.click(cell(1, "/id"))
    for _ in range(columns(page).index("/qty")):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.keyboard.press("Control+A")
    page.keyboard.type("77")
    page.keyboard.press("Enter")
    until_text(page, 1, "/qty", "77")
    until(lambda: record() == before | {"qty": 77}, record)
    page.click(cell(1, "/id"))
    page.keyboard.press("Control+z")
    until_text(page, 1, "/qty", "3,700")
    until(lambda: record() == before, record)


def test_an_undo_keeps_what_another_one_wrote(page, world):
    """An edit is not undone where its cell was changed by another one meanwhile."""
    page.dblclick(cell(1, "/qty"))
    page.keyboard.press("Control+A")
    page.keyboard.type("77")
    page.keyboard.press("Enter")
    page.wait_for_function("window.sowstreamPage.edits.count === 1")
    world.put("0001", qty=5)
    page.click("#undo")
    page.wait_for_function("document.querySelector('#fault').textContent.includes('changed by another one')")
    until_text(page, 1, "/qty", "5")


def test_a_record_is_made_and_deleted(page):
    """*New* publishes a record of a free key, keeps its text after a mistake, and is undone; *Delete* asks first."""

    def make(text):
        page.click("#new")
        before = page.input_value("#made textarea")
        page.fill("#made textarea", text)
        page.click("#made button")
        return before

    rows = "document.querySelector('#rows').textContent"
    page.click("#new")
    shot(page, "new")
    page.keyboard.press("Escape")
    assert json.loads(make('{"id": "0001", "qty": 1}')) == json.loads(json.dumps(order(0)))
    page.wait_for_function("document.querySelector('#fault').textContent.includes('was not made')")
    assert make('{"id": "9999", "qty": 12345678901234567890.5}') == '{"id": "0001", "qty": 1}'
    page.wait_for_function(f"{rows} === '201' && {SETTLED}")
    page.click("#undo")
    page.wait_for_function(f"{rows} === '200' && {SETTLED}")
    page.click(cell(1, "/id"))
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('#record [data-part=state]').textContent === 'version 1'")
    asked = []
    for answer in ("dismiss", "accept"):
        page.once("dialog", lambda dialog, answer=answer: (asked.append(dialog.message), getattr(dialog, answer)()))
        page.click("#delete")
        page.wait_for_function(f"{rows} === '{200 - len(asked) // 2}' && {SETTLED}")
    assert asked == ["Delete 0001? This cannot be undone."] * 2


def test_a_record_that_was_not_read_is_not_deleted(page, world):
    """*Delete* is disabled until the panel shows the record with its version, and when there is no record any more."""
    state = "document.querySelector('#record [data-part=state]').textContent"
    world.gateway.call(world.feeds["orders"].hold)
    page.click(cell(1, "/id"))
    page.keyboard.press("Space")
    page.wait_for_function(f"{state} === 'is read'")
    assert page.is_disabled("#delete")
    world.gateway.call(world.feeds["orders"].restart)
    page.wait_for_function(f"{state} === 'version 1'")
    assert page.is_enabled("#delete")
    world.delete("0001")
    page.wait_for_function(f"{state}.includes('no such record any more')")
    assert page.is_disabled("#delete")


def test_a_pause_holds_the_picture(page, world):
    """While it is paused the picture stays; then it shows the records of now."""
    page.click("#pause")
    world.put("0000", customer="c0", qty=999_999, state="new")
    page.wait_for_function(
        "window.sowstreamPage.grid.window.newest(window.sowstreamPage.grid.window.rows[0]).record.qty === 999999"
    )
    assert text(page, 0, "/qty") == "0"
    page.click("#pause")
    until_text(page, 0, "/qty", "999,999")


def test_columns_are_sorted_hidden_pinned_moved_and_the_link_has_it_all(page, world, context):
    """A click on a header sorts, another column joins with Shift, and the link opens the same view elsewhere."""
    page.click(header("/symbol"))
    page.wait_for_function("location.hash.includes('order')")
    page.click(header("/qty"), modifiers=["Shift"])
    page.click(header("/qty"), modifiers=["Shift"])
    page.wait_for_function("decodeURIComponent(location.hash).includes('order=/symbol,-/qty')")
    page.click("text=Columns")
    page.uncheck("#choices label:has-text('state') input")
    page.click("#choices button[aria-label='pin side']")
    page.wait_for_function("location.hash.includes('columns')")
    page.click("h1")
    page.wait_for_selector("#choices", state="hidden")
    edge = page.locator('#grid .ag-header-cell[col-id="/customer"] .ag-header-cell-resize').bounding_box()
    page.mouse.move(edge["x"] + edge["width"] / 2, edge["y"] + 10)
    page.mouse.down()
    page.mouse.move(edge["x"] + edge["width"] / 2 + 60, edge["y"] + 10, steps=5)
    page.mouse.up()
    page.drag_and_drop(header("/at"), header("/qty"))
    page.wait_for_function(
        "window.sowstreamPage.grid.shownPaths.indexOf('/at') < window.sowstreamPage.grid.shownPaths.indexOf('/qty')"
    )
    ask(page, "/customer != 'Bo'")
    page.wait_for_function("location.hash.includes('filter')")
    page.wait_for_function(SETTLED)
    other = context.new_page()
    other.goto(page.url)
    other.wait_for_function(SETTLED)
    other.wait_for_function("window.sowstreamPage.grid.shownPaths.length > 3")
    assert columns(other) == columns(page)
    assert columns(page)[:2] == ["/id", "/side"]
    assert "/state" not in columns(page)
    layout = "JSON.stringify(window.sowstreamPage.grid.layout)"
    assert other.evaluate(layout) == page.evaluate(layout)
    other.wait_for_function(f"({SIGHT})('/id').length > 5")
    until(lambda: other.evaluate(SIGHT, "/id") == page.evaluate(SIGHT, "/id"), "the same rows in both", pause_s=0.1)
    assert other.input_value("#filter") == "/customer != 'Bo'"
    assert other.get_attribute('#grid .ag-header-cell[col-id="/qty"]', "aria-sort") == "descending"


def test_a_column_is_filtered_and_the_link_has_it(page, context):
    """The filter of a column narrows the grid with the others, the link has it, and of groups it is a written one."""
    fault = "document.querySelector('#fault').textContent"
    rows = "document.querySelector('#rows').textContent"

    def filter_column(column, text):
        page.hover(header(column))
        page.click(f'#grid .ag-header-cell[col-id="{column}"] .ag-header-cell-filter-button')
        page.locator(".ag-filter input[type=text]").first.fill(text)

    filter_column("/customer", "CY")
    page.wait_for_function(f"{rows} === '50'")
    page.keyboard.press("Escape")
    filter_column("/qty", "7,400")
    page.wait_for_function(f"{fault}.includes('Write 7400.')")
    page.locator(".ag-filter input[type=text]").first.fill("7400")
    page.wait_for_function(f"{rows} === '1' && {fault} === '' && {SETTLED}")
    shot(page, "columns")
    page.keyboard.press("Escape")
    ask(page, "/state = 'new'")
    page.wait_for_function("location.hash.includes('filter')")
    other = context.new_page()
    other.goto(page.url)
    other.wait_for_function(f"{rows} === '1' && {SETTLED}")
    assert columns(other) == columns(page)
    active = '#grid .ag-header-cell[col-id="/qty"] .ag-filter-active'
    assert [one.locator(active).count() for one in (page, other)] == [1, 1]
    page.click("text=Group")
    page.check("#groups input[value='/customer']")
    page.wait_for_function("location.hash.includes('groups')")
    page.wait_for_function(f"{rows} === '1' && {SETTLED}")
    assert page.input_value("#filter") == "(/state = 'new') AND INSTR_I(/customer, 'CY') != 0 AND /qty = 7400"


def test_a_link_is_followed_when_it_changes_and_an_unknown_topic_is_named(page, world):
    """A changed link is followed at once; a topic that is not there is named, and the first one is shown."""
    world.put("a", "quotes", bid=3)
    page.evaluate("location.hash = 'topic=quotes'")
    page.wait_for_function("document.querySelector('#rows').textContent === '1'")
    assert page.input_value("#topic") == "quotes"
    page.evaluate("location.hash = 'topic=nosuch'")
    page.wait_for_function("document.querySelector('#rows').textContent === '200'")
    said = "There is no topic nosuch that you may read; this is orders."
    page.wait_for_function(f"document.querySelector('#fault').textContent === '{said}'")


def test_each_topic_keeps_its_own_query(page, world):
    """Another topic begins without the filter of the last one, which has it again later."""
    world.put("a", "quotes", bid=3)
    ask(page, "/id < '0003'")
    page.wait_for_function("document.querySelector('#rows').textContent === '3'")
    page.select_option("#topic", "quotes")
    page.wait_for_function("document.querySelector('#rows').textContent === '1'")
    assert page.input_value("#filter") == ""
    assert linked(page) == {"topic": "quotes"}
    page.select_option("#topic", "orders")
    page.wait_for_function("document.querySelector('#rows').textContent === '3'")


def test_views_and_the_look_are_kept(page):
    """A view that was saved is in the list after a reload, and so is the look that was chosen."""
    look = "document.documentElement.dataset.look"
    before = page.evaluate(look)
    page.click("#theme")
    ask(page, "/id < '0003'")
    page.wait_for_function("document.querySelector('#rows').textContent === '3'")
    page.click("text=Views")
    page.fill("#view-name", "first three")
    page.click("#view-save")
    ask(page, "")
    page.wait_for_function("document.querySelector('#rows').textContent === '200'")
    page.reload()
    page.wait_for_function(SETTLED)
    assert page.evaluate(look) != before
    page.click("text=Views")
    page.click("text=first three")
    page.wait_for_function("document.querySelector('#rows').textContent === '3'")


def test_a_csv_has_the_records_of_the_query(page, world):
    """The CSV has all records that match, in the order and the columns of the grid, with each value as it is."""
    world.put("quoted", customer='a "b", c', qty=9007199254740993, note="line\nend")
    ask(page, "/customer != 'Bo'")
    page.wait_for_function("document.querySelector('#rows').textContent === '151'")
    page.click(header("/qty"))
    page.wait_for_function("location.hash.includes('order')")
    page.wait_for_function(SETTLED)
    with page.expect_download() as download:
        page.click("#csv")
    rows = list(csv.DictReader(Path(download.value.path()).read_text().splitlines(keepends=True)))
    _, _, body = world.gateway.get("/v1/topics/orders/sow?filter=/customer%20!=%20'Bo'&order_by=/qty&top_n=1000")
    records = [json.loads(line)["data"] for line in body.splitlines()]
    assert [row["id"] for row in rows] == [record["id"] for record in records]
    assert rows[-1]["customer"] == 'a "b", c'
    assert rows[-1]["qty"] == "9007199254740993"


def test_a_record_has_its_fields_and_its_last_updates(page, world):
    """Space opens a record, with its updates, what their publishers said, and a line of each number that moved."""
    page.click(cell(2, "/id"))
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('#record [data-part=state]').textContent === 'version 1'")
    assert page.is_hidden("#record h3")
    world.put("0001", **order(1, qty=1))
    until_text(page, 1, "/qty", "1")
    page.click(cell(1, "/id"))
    page.keyboard.press("Space")
    updates = "document.querySelector('#record [data-part=updates]').textContent"
    page.wait_for_function(f"{updates}.includes('qty = 1')")
    assert page.is_visible("#record h3")
    assert linked(page)["record"] == "0001"
    headers = {"correlation_id": b"ticket-7", "trader": b"Ann"}
    world.gateway.call(lambda: world.feeds["orders"].write("0001", order(1, qty=2), **headers))
    page.wait_for_function(f"{updates}.includes('qty = 2') && {updates}.includes('trader: Ann, ticket-7')")
    line = "#record tr:has(th:text-is('{}')) polyline"
    assert page.get_attribute(line.format("qty"), "points") == "0,15 60,1"
    assert page.locator(line.format("price")).count() == 0
    shot(page, "record")
    world.delete("0001")
    page.wait_for_function("document.querySelector('#record').textContent.includes('no such record any more')")
    page.click("#record-close")
    assert "record" not in linked(page)


def test_groups_and_totals_follow_the_records(page, world):
    """Groups have the figures of their records, the line below has those of all, and Space opens a group's records."""
    page.click("text=Group")
    page.check("#groups input[value='/customer']")
    page.wait_for_function("document.querySelector('#rows').textContent === '4'")
    page.check("#totals")
    page.click("h1")
    keys = range(200)
    quantities = [key * 37 % 1000 * 100 for key in keys]
    until_text(page, 0, "/customer", "Ada")
    until_text(page, 0, "/count", "50")
    until_text(page, 0, "/qty", f"{sum(quantities[::4]):,}")
    total = "#grid .ag-row-pinned[row-index='b-0'] .ag-cell[col-id='/qty']"
    page.wait_for_function(f"""document.querySelector("{total}")?.textContent.trim() === '{sum(quantities):,}'""")
    world.put("0000", customer="Ada", qty=1_000_000)
    until_text(page, 0, "/qty", f"{sum(quantities[::4]) + 1_000_000:,}")
    page.wait_for_function(
        f"""document.querySelector("{total}")?.textContent.trim() === '{sum(quantities) + 1_000_000:,}'"""
    )
    shot(page, "groups")
    page.click(cell(1, "/customer"))
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('#rows').textContent === '50'")
    assert page.input_value("#filter") == "/customer = 'Bo'"
    page.wait_for_function(f"""document.querySelector("{total}")?.textContent.trim() === '{sum(quantities[1::4]):,}'""")


def test_groups_are_sorted_filtered_and_scrolled(page, world):
    """More groups than a window has are sorted and filtered like records, and scrolled to the end; they stay live."""
    rows = "document.querySelector('#rows').textContent"
    page.click("text=Group")
    page.check("#groups input[value='/at']")
    page.wait_for_function(f"{rows} === '200'")
    page.click("h1")
    highest_first = sorted((key * 37 % 1000 * 100 for key in range(200)), reverse=True)
    page.click(header("/qty"))
    until_text(page, 0, "/qty", "0")
    page.click(header("/qty"))
    until_text(page, 0, "/qty", f"{highest_first[0]:,}")
    page.evaluate("void window.sowstreamPage.grid.api.ensureIndexVisible(199)")
    until_text(page, 199, "/qty", "0")
    world.put("0000", qty=5)
    until_text(page, 199, "/qty", "5")
    ask(page, "/qty >")
    page.wait_for_function("document.querySelector('#fault').textContent.includes('^')")
    assert page.inner_text("#rows") == "200"
    ask(page, "/qty < 50000")
    matching = [one for one in highest_first if one < 50_000]
    page.wait_for_function(f"{rows} === '{len(matching)}'")
    until_text(page, 0, "/qty", f"{matching[0]:,}")
    assert page.inner_text("#fault") == ""


def test_the_window_is_paced_by_the_updates_of_each_second(page, world):
    """The page tells its window each second how many updates there were."""
    page.evaluate("""() => {
      const { window: rows } = window.sowstreamPage.grid;
      const pace = rows.pace.bind(rows);
      window.paces = [];
      rows.pace = (updates) => { window.paces.push(updates); return pace(updates); };
    }""")
    world.gateway.call(lambda: [world.feeds["orders"].write("0000", order(0, qty=key)) for key in range(300)])
    page.wait_for_function("window.paces.reduce((one, other) => one + other, 0) === 300")
    until_text(page, 0, "/qty", "299")


def test_rates_lag_and_a_lost_connection_are_shown(page, world):
    """The updates of a second, their lag, and the state of the connection are shown; the grid is grey without one."""
    page.evaluate("""() => {
      window.seen = { lag: '', rate: 0, states: [] };
      new MutationObserver(() => { if (lag.textContent.endsWith(' ms')) window.seen.lag = lag.textContent; })
        .observe(document.querySelector('#lag'), { childList: true });
      new MutationObserver(() => { window.seen.rate += Number(rate.textContent); })
        .observe(document.querySelector('#rate'), { childList: true });
      const { connection } = window.sowstreamPage;
      connection.addEventListener('state', () => window.seen.states.push(document.querySelector('#state').textContent));
    }""")
    world.put("0000", customer="c0", qty=1, state="new")
    page.wait_for_function("window.seen.lag && window.seen.rate === 1")
    world.gateway.call(lambda: [session.abort(1011, "test") for session in list(world.gateway.gateway.sessions)])
    page.wait_for_function("window.seen.states.at(-1) === 'connected'")
    assert page.evaluate("window.seen.states[0]") == "connection lost, trying again"


@pytest.mark.skipif(not PERSPECTIVE.exists(), reason="npm ci in processor/gateway/web/adapters")
def test_analyse_opens_the_records_that_match_in_perspective(page, context):
    """*Analyse* has the records of the filter in the order of the grid, which it names; Perspective draws them."""
    ask(page, "/side = 'buy'")
    page.wait_for_function("document.querySelector('#rows').textContent === '100'")
    page.click(header("/qty"))
    page.wait_for_function("location.hash.includes('order')")
    with context.expect_page() as opening:
        page.click("#analyse")
    analysis = opening.value
    analysis.wait_for_function("Boolean(window.sowstreamGrid?.table)")
    assert analysis.evaluate("window.sowstreamGrid.table.size()") == 100
    assert analysis.title() == "orders: Analyse"
    assert [analysis.inner_text(part) for part in ("h1", "#query", "#state")] == [
        "orders",
        "/side = 'buy'",
        "100 records",
    ]
    first = [f"{key:04d}" for key in sorted(range(0, 200, 2), key=lambda key: key * 37 % 1000)[:5]]
    column = analysis.locator("regular-table tbody tr td:first-child")
    until(lambda: column.all_inner_texts()[:5] == first, column.all_inner_texts, pause_s=0.1)
    view = {"plugin": "X Bar", "group_by": ["customer"], "split_by": ["symbol"], "columns": ["qty"], "settings": True}
    analysis.evaluate("(view) => document.querySelector('perspective-viewer').restore(view)", view)
    shot(analysis, "analyse")


def test_without_perspective_analyse_says_how_to_get_it(context, world, monkeypatch):
    """*Analyse* without an installed Perspective names the command that installs it; the console has no error."""
    monkeypatch.setattr(endpoints, "_PERSPECTIVE", Path("/nowhere"))
    opened = context.new_page()
    faults = []
    opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    go(opened, world, "topic=orders")
    opened.click("#analyse")
    assert "without Perspective" in opened.inner_text("#fault")
    assert "npm ci" in opened.inner_text("#fault")
    assert faults == []


def test_it_fits_a_phone(context, world):
    """At phone width nothing but the grid scrolls sideways, and the grid has most of the height."""
    opened = context.new_page()
    opened.set_viewport_size({"width": 390, "height": 800})
    go(opened, world, "topic=orders")
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.evaluate("document.querySelector('#grid').clientHeight > innerHeight * .7")
    assert opened.evaluate(HINTS_FIT) == []
    shot(opened, "phone")


def test_the_hints_of_empty_fields_are_not_cut(page):
    """At the width of a small laptop each empty field has room for its example."""
    assert page.evaluate(HINTS_FIT) == []


def test_the_key_of_one_field_has_no_column_of_its_own(context, world):
    """A view in groups by one field has that field as its first column, and no column with the same as a key."""
    opened = context.new_page()
    opened.route(
        "**/v1/topics",
        lambda route: route.fulfill(body=route.fetch().text().replace('"groups":false', '"groups":true')),
    )
    go(opened, world, "topic=orders")
    assert opened.evaluate("window.sowstreamPage.topic.groups")
    assert columns(opened)[0] == "/id"
    assert "SOW_KEY()" not in columns(opened)


def test_without_its_library_the_page_says_what_to_do(context, world):
    """Without the library of the grid the page shows how to install it."""
    opened = context.new_page()
    opened.route("**/ag-grid-community*", lambda route: route.fulfill(status=404))
    go(opened, world, "topic=orders", settled=False)
    opened.wait_for_function("document.querySelector('#fault').textContent.includes('npm ci')")
