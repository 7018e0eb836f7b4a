"""The page in a real Chromium: the quick search, several panes, the operators' tab, and accessibility."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from processor.gateway import endpoints
from processor.installation.pipeline_status import PartitionStatus, PipelineStatus, Status, StatusReport
from processor.kafka.admin.groups import Member
from processor.wire.control import Notice
from tests.gateway.browsing import NEEDS, SETTLED, ask, cell, linked, shot
from tests.gateway.memory import RIGHTS, TOKENS, Guarded, MemoryWorld

pytestmark = NEEDS
ROWS = "document.querySelector('#rows').textContent"


@pytest.fixture
def world():
    """A gateway with two topics."""
    made = MemoryWorld("orders", "quotes")
    for key, customer in enumerate(("Ada", "Bo", "ADAM", "it's \\x"), 1):
        made.put(key, customer=customer, qty=key * 1000, open=key % 2 == 0)
    made.put("EURUSD", "quotes", bid=1.0850)
    yield made
    made.close()


def serious_faults(page):
    """The serious and critical accessibility faults that axe-core finds."""
    axe = Path(__file__).parent / "js" / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.exists():
        pytest.skip("axe-core is not installed: npm ci --prefix tests/gateway/js")
    page.evaluate(axe.read_text())
    found = page.evaluate("axe.run().then((result) => result.violations)")
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    return [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in serious]


def search(page, text, rows):
    """Type a quick search, and wait for the number of rows."""
    page.fill("#search", text)
    page.wait_for_function(f"{ROWS} === '{rows}' && {SETTLED}")


def test_a_quick_search_looks_into_every_field(page):
    """A text is looked for in the key and in all fields, in any case, with the filter; the link has both."""
    search(page, "ada", 2)
    ask(page, "/qty > 1000")
    page.wait_for_function(f"{ROWS} === '1'")
    page.wait_for_function("location.hash.includes('search')")
    assert linked(page) == {"topic": "orders", "filter": "/qty > 1000", "search": "ada"}
    page.reload()
    page.wait_for_function(f"{ROWS} === '1'")
    assert page.input_value("#search") == "ada"
    ask(page, "")
    search(page, "300", 1)
    search(page, "it's \\", 1)
    search(page, "", 4)
    assert linked(page) == {"topic": "orders"}


def test_panes_stand_side_by_side_and_the_link_has_all_of_them(page, context, world):
    """Each pane has its own topic and query; the link opens them elsewhere, and a closed one is gone from it."""
    with context.expect_page() as opening:
        page.click("#beside")
    desk = opening.value
    desk.wait_for_selector("iframe >> nth=1")
    left, right = (desk.frame_locator(f"iframe >> nth={at}") for at in (0, 1))
    right.locator("#grid .ag-row").first.wait_for()
    right.locator("#topic").select_option("quotes")
    right.locator('.ag-cell[col-id="/bid"]').wait_for()
    left.locator("#filter").fill("/customer = 'Bo'")
    left.locator("#filter").press("Enter")
    desk.wait_for_function("decodeURIComponent(location.hash).includes('Bo')")
    links = [parse_qs(link) for link in parse_qs(desk.evaluate("location.hash").removeprefix("#"))["pane"]]
    assert links == [{"topic": ["orders"], "filter": ["/customer = 'Bo'"]}, {"topic": ["quotes"]}]
    world.put("EURUSD", "quotes", bid=1.25)
    right.locator(".ag-cell", has_text="1.25").wait_for()
    desk.wait_for_function("document.querySelectorAll('iframe')[1].title === 'Pane 2: quotes'")
    assert right.locator('.ag-cell[col-id="/id"]').evaluate("(cell) => cell.scrollWidth <= cell.clientWidth")
    shot(desk, "panes")
    other = context.new_page()
    other.goto(desk.url)
    other.frame_locator("iframe >> nth=1").locator('.ag-cell[col-id="/bid"]').wait_for()
    other.frame_locator("iframe >> nth=0").locator('.ag-cell:text-is("Bo")').wait_for()
    other.click("section:first-child > button")
    other.wait_for_function("!location.hash.includes('orders')")
    assert other.locator("iframe").count() == 1
    other.click("#add")
    other.click("#stack")
    other.wait_for_function("location.hash.split('quotes').length === 3 && location.hash.includes('stacked')")
    assert [fault for frame in desk.frames for fault in serious_faults(frame)] == []


def test_the_token_of_all_panes_is_asked_for_once(context, tmp_path):
    """One question gives all panes their token, also if panes are closed meanwhile; others have no tab of operators."""
    guarded = Guarded(tmp_path)
    try:
        desk = context.new_page()
        desk.goto(f"http://{guarded.world.gateway.address}/desk.html#{'&'.join(['pane=topic%3Dorders'] * 3)}")
        desk.wait_for_selector("#logon[open]")
        asking = "Array.from(frames).filter((pane) => pane.sowstreamPage?.connection).length === 3"
        desk.wait_for_function(asking)
        desk.evaluate("document.querySelector('section > button').click()")  # A pane, while the token is asked for.
        assert serious_faults(desk) == []
        desk.fill("#token", "wrong")
        desk.press("#token", "Enter")
        desk.wait_for_function("document.querySelector('#token')?.value === ''")
        desk.fill("#token", "t-bob")
        desk.press("#token", "Enter")
        for pane in (desk.frame_locator(f"iframe >> nth={at}") for at in (0, 1)):
            pane.locator('.ag-cell[col-id="/qty"]').first.wait_for()
            assert pane.locator("#operate").is_hidden()
        assert desk.locator("#logon").count() == 0
        assert TOKENS["t-bob"]["roles"] == ["desk"]
        assert "operators" not in RIGHTS
    finally:
        guarded.world.close()


def test_operators_see_the_status_of_the_installation(page, monkeypatch):
    """The tab shows each partition's worker, lag and hold with what to do, and leads back to the records."""
    owner = Member("m-1", f"host-1-0a1b2c3d-1-{'0' * 32}", "10.0.0.1", None, frozenset())
    process = {"host": "host-1", "pid": 1, "version": "0.1.0", "tries": 1, "next_try_ms": 1}
    times = {"since_ms": 1_795_770_900_000, "at_ms": int(time.time() * 1000)}
    message = "a batch of records cannot be read"
    notice = Notice(reason="unreadable_batch", offset=7, message=message, **process, **times)
    parts = [PartitionStatus(0, owner, 5, 9, {}, None), PartitionStatus(1, None, 7, 7, {}, notice)]
    status = Status([PipelineStatus("orders", "trial.orders", "stable", parts, {})], has_control=True)
    monkeypatch.setattr(endpoints, "status_report", lambda config: StatusReport("trial", status, {("orders", 0): 3}))
    ask(page, "/qty > 1000")
    page.wait_for_function(f"{ROWS} === '3'")
    page.wait_for_selector("#operate:visible")
    page.click("#operate")
    page.wait_for_selector("#status .ag-row")
    cells = """[...document.querySelectorAll('#status .ag-row')].map(
        (row) => [...row.querySelectorAll('.ag-cell')].map((one) => one.textContent))"""
    page.wait_for_function(f"{cells}.length === 2 && {cells}[0].length === 8")
    rows = page.evaluate(cells)
    assert rows[0][:6] == ["orders", "0", "host-1-0a1b2c3d-1", "5", "3", ""]
    assert rows[1][:3] == ["orders", "1", "no worker"]
    assert rows[1][5:7] == ["unreadable_batch", "2026-11-27 10:15:00"]
    wide = """[...document.querySelectorAll('#status .ag-row[row-index="1"] .ag-cell')].map(
        (one) => one.scrollWidth <= one.clientWidth)"""
    assert page.evaluate(wide) == [True] * 8
    assert page.is_hidden("#rows")
    assert message in page.inner_text("#status [data-part=notes]")
    assert page.inner_text("#status [data-part=summary]").startswith("trial: 1 partition held,")
    shot(page, "status")
    page.click("#operate")
    page.wait_for_function(f"{ROWS} === '3'")
    assert linked(page) == {"topic": "orders", "filter": "/qty > 1000"}
    page.click("#operate")
    page.wait_for_selector("#status .ag-row")
    assert serious_faults(page) == []


def arrange(page):
    """Open the menu of columns."""
    page.click("text=Columns")


def group(page):
    """Group by a field, with totals, and leave the menu open."""
    page.click("text=Group")
    page.check("#groups input[value='/customer']")
    page.check("#totals")
    page.wait_for_selector("#grid .ag-row-pinned")


def open_record(page):
    """Open a record."""
    page.click(cell(0, "/qty"))
    page.keyboard.press("Space")
    page.wait_for_selector("#record table td")


def save_view(page):
    """Save a view, and leave the menu open."""
    page.click("text=Views")
    page.fill("#view-name", "mine")
    page.click("#view-save")
    page.wait_for_selector("#views a")


def mistype(page):
    """Type a text into a number."""
    page.dblclick(cell(0, "/qty"))
    page.keyboard.press("Control+A")
    page.keyboard.type("abc")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#fault').textContent.includes('holds a number')")


def mistake(page):
    """Write a filter with a mistake."""
    ask(page, "/qty >")
    page.wait_for_function("document.querySelector('#fault').textContent.includes('^')")


def narrow(page):
    """Find no record."""
    ask(page, "/qty > 1000000")
    page.wait_for_function("document.querySelector('#fault').textContent.includes('No record')")


def pause(page):
    """Hold the picture, with one record that left the view before."""
    ask(page, "/qty > 1000")
    page.wait_for_function(f"{ROWS} === '3'")
    page.click("#pause")
    if page.is_visible("#gone summary"):
        page.click("#gone summary")


STATES = {
    "record": open_record,
    "columns": arrange,
    "groups": group,
    "views": save_view,
    "a mistake in the filter": mistake,
    "an empty grid": narrow,
    "a refused edit": mistype,
    "paused": pause,
}


@pytest.mark.parametrize("width", [1100, 390])
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_no_serious_fault(page, state, width):
    """axe-core finds no serious or critical accessibility fault, in light and in dark, on a laptop and on a phone."""
    page.set_viewport_size({"width": width, "height": 800})
    STATES[state](page)
    assert serious_faults(page) == []
    page.evaluate("document.querySelector('#theme').click()")  # A click elsewhere closes menus.
    assert serious_faults(page) == []


def test_axe_finds_no_serious_fault_while_the_gateway_hangs(page, world):
    """Old records are grey and can still be read."""
    goes_on = threading.Event()
    world.gateway._loop.call_soon_threadsafe(goes_on.wait, 120)
    try:
        page.wait_for_function("document.body.dataset.life === 'gone'")
        for _ in range(2):
            assert serious_faults(page) == []
            page.click("#theme")
    finally:
        goes_on.set()


@pytest.mark.parametrize("look", ["light", "dark"])
def test_axe_finds_no_serious_fault_in_perspective(context, world, look):
    """The page of *Analyse* has no serious fault, in light and in dark."""
    world.put(9, customer="Di", qty=-5)
    opened = context.new_page()
    opened.emulate_media(color_scheme=look)
    opened.goto(f"http://{world.gateway.address}/adapters/perspective.html#topic=orders")
    opened.wait_for_function("Boolean(window.sowstreamGrid?.table)")
    assert serious_faults(opened) == []
