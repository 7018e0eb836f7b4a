"""The page of the gateway in a real Chromium: its live grid, filter, keyboard, looks and accessibility."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from tests.gateway.memory import MemoryWorld

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="chromium is not installed: apt-get install chromium"),
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
]
PATIENCE_MS = int(os.environ.get("SOWSTREAM_PATIENCE_MS", "180000"))
SHOTS = os.environ.get("SOWSTREAM_SHOTS")
"""A directory for screenshots; none: none are taken."""


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


@pytest.fixture
def world():
    """A gateway with records."""
    made = MemoryWorld("orders", "quotes")

    def fill():
        for key in range(200):
            made.feeds["orders"].write(
                f"{key:04d}", {"id": f"{key:04d}", "customer": f"c{key % 7}", "qty": key, "state": "new"}
            )

    made.gateway.call(fill)
    yield made
    made.close()


@pytest.fixture
def page(browser, world):
    """The page with the orders, live."""
    opened = browser.new_page(viewport={"width": 1100, "height": 700}, bypass_csp=True)
    opened.set_default_timeout(PATIENCE_MS)
    faults = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.goto(f"http://{world.gateway.address}/#topic=orders")
    opened.wait_for_function("document.querySelectorAll('#body tr').length > 5")
    yield opened
    opened.close()
    assert not faults


def shot(page, name):
    """Take a screenshot, if they are wanted."""
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))


def cells(page, row=0):
    """The texts of a row."""
    return page.evaluate(f"[...document.querySelectorAll('#body tr')[{row}].children].map((cell) => cell.textContent)")


def test_the_grid_shows_records_as_they_change(page, world):
    """The grid shows the first records, and a changed cell at once."""
    assert page.inner_text("#state") == "connected"
    assert page.inner_text("#rows") == "200"
    assert cells(page)[:2] == ["0000", "0000"]
    world.put("0000", customer="c0", qty=4711, state="new")
    page.wait_for_function("document.querySelector('#body tr').textContent.includes('4711')")
    assert page.evaluate("Boolean(document.querySelector('#body tr td.flash'))")
    shot(page, "light")
    page.click("#theme")
    shot(page, "dark")


def test_a_filter_narrows_the_grid_and_its_error_shows_the_place(page):
    """A filter replaces the view in one step; a wrong one leaves it, and shows a caret below its place."""
    page.fill("#filter", "/qty >")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#fault').textContent.includes('^')")
    shot(page, "fault")
    page.fill("#filter", "/qty > 195")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('#body tr').length === 4")
    assert page.inner_text("#fault") == ""


def test_rows_that_leave_show_their_reason(page, world):
    """A row that leaves the query is listed with its reason."""
    page.fill("#filter", "/qty < 3")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('#body tr').length === 3")
    world.delete("0001")
    page.wait_for_function("document.querySelector('#left').textContent.includes('0001: deleted')")


def test_the_keyboard_moves_and_edits(page, world):
    """Arrow keys move between cells; Enter edits one, which publishes a delta."""
    page.click("#body tr:nth-child(2) td:nth-child(1)")
    names = page.evaluate("[...document.querySelectorAll('#head th')].map((cell) => cell.textContent)")
    for _ in range(names.index("qty")):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.keyboard.type("77")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('#body tr')[1].textContent.includes('77')")
    record = world.gateway.call(lambda: world.feeds["orders"].records[b"0001"].value)
    assert b'"qty":77' in record
    assert b'"state":"new"' in record


def test_scrolling_moves_the_window(page):
    """Scrolling to the end shows the last record, while only a window of records is held."""
    page.evaluate("document.querySelector('#scroller').scrollTop = 1e9")
    page.wait_for_function("document.querySelector('#body').textContent.includes('0199')")
    assert page.evaluate("window.sowstreamPage.view.size") < 100


def test_a_pause_holds_the_picture(page, world):
    """While it is paused the picture stays; then it shows the records of now."""
    page.click("#pause")
    world.put("0000", customer="c0", qty=999_999, state="new")
    page.wait_for_function("window.sowstreamPage.view.get('0000').qty === 999999")
    assert "999999" not in "".join(cells(page))
    page.click("#pause")
    page.wait_for_function("document.querySelector('#body tr').textContent.includes('999999')")


def test_a_topic_its_fields_and_their_order_are_chosen(page, world):
    """Another topic is chosen, rows are sorted by a field, and a field that is not wanted is left out."""
    for key, bid in (("a", 3), ("b", 1), ("c", 2)):
        world.put(key, "quotes", bid=bid, note="n")
    page.select_option("#topic", "quotes")
    page.wait_for_function("document.querySelectorAll('#body tr').length === 3")
    page.select_option("#sort", "/bid")
    page.select_option("#direction", " DESC")
    rows = "[...document.querySelectorAll('#body tr')].map((line) => line.dataset.key).join('')"
    page.wait_for_function(f"{rows} === 'acb'")
    page.click("#fields summary")
    page.uncheck("#choices label:has-text('note') input")
    page.wait_for_function("!document.querySelector('#head').textContent.includes('note')")
    assert page.inner_text("#rows") == "3"


def test_rates_lag_and_a_lost_connection_are_shown(page, world):
    """The updates of a second, their lag, and the state of the connection are shown."""
    page.evaluate("""() => {
      window.seen = { lag: '', states: [] };
      new MutationObserver(() => { if (lag.textContent.endsWith(' ms')) window.seen.lag = lag.textContent; })
        .observe(document.querySelector('#lag'), { childList: true });
      const { connection } = window.sowstreamPage;
      connection.addEventListener('state', () => window.seen.states.push(document.querySelector('#state').textContent));
    }""")
    world.put("0000", customer="c0", qty=1, state="new")
    page.wait_for_function("window.seen.lag")
    world.gateway.call(lambda: [session.abort(1011, "test") for session in list(world.gateway.gateway.sessions)])
    page.wait_for_function("window.seen.states.at(-1) === 'connected'")
    assert page.evaluate("window.seen.states[0]") == "connection lost, trying again"


def test_it_fits_a_phone(browser, world):
    """At phone width nothing but the grid scrolls sideways."""
    opened = browser.new_page(viewport={"width": 390, "height": 800}, bypass_csp=True)
    opened.set_default_timeout(PATIENCE_MS)
    opened.goto(f"http://{world.gateway.address}/#topic=orders")
    opened.wait_for_function("document.querySelectorAll('#body tr').length > 5")
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shot(opened, "phone")
    opened.close()


def test_axe_finds_no_serious_fault(page):
    """axe-core finds no serious or critical accessibility fault, in light and in dark."""
    axe = Path(__file__).parent / "js" / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.exists():
        pytest.skip("axe-core is not installed: npm ci --prefix tests/gateway/js")
    page.evaluate(axe.read_text())
    for _ in range(2):
        found = page.evaluate("axe.run().then((result) => result.violations)")
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not serious, [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in serious]
        page.click("#theme")
