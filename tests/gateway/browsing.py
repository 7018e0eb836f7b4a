"""The page in a real Chromium, for tests: what they need, where the grid has its cells, and what a user does."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from processor.gateway.application import WEB

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
LIBRARY = WEB / "adapters/node_modules/ag-grid-community/dist/ag-grid-community.min.noStyle.js"
PERSPECTIVE = WEB / "adapters/node_modules/@perspective-dev/viewer"
NEEDS = [
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="chromium is not installed: apt-get install chromium"),
    pytest.mark.skipif(not LIBRARY.exists(), reason="npm ci in processor/gateway/web/adapters"),
    pytest.mark.long,
    pytest.mark.timeout(900),
]
"""The marks of tests that need a browser."""
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
