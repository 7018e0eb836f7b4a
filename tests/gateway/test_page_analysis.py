"""The page in a real Chromium: groups, totals, CSV, and *Analyse*."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from processor.gateway import endpoints
from tests.gateway.browsing import NEEDS, PERSPECTIVE, SETTLED, ask, cell, go, header, shot, until_text
from tests.waiting import until

pytestmark = NEEDS


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
