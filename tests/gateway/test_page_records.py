"""The page in a real Chromium: records that are edited, made, deleted and opened."""

from __future__ import annotations

import json

from tests.gateway.browsing import NEEDS, SETTLED, cell, columns, linked, order, shot, until_text
from tests.waiting import until

pytestmark = NEEDS


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


def test_tab_leaves_the_grid_and_escape_returns_to_it(page):
    """Tab goes from a cell to the record that it opened, Escape closes the record, also from the grid."""
    page.click(cell(2, "/id"))
    for keys in (["Tab", "Escape"], ["Escape"]):
        page.keyboard.press("Space")
        page.wait_for_selector("#record table td")
        assert page.evaluate(f"document.activeElement.matches('{cell(2, '/id')}')")
        for key in keys:
            page.keyboard.press(key)
            assert page.is_hidden("#record") or page.evaluate("document.activeElement.closest('#record') !== null")
        assert page.is_hidden("#record")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(f"document.activeElement.matches('{cell(3, '/id')}')")


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
    page.click("#made button:text-is('Cancel')")
    assert page.locator("#made").count() == 0
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


def test_a_record_has_its_fields_and_its_last_updates(page, world):
    """Space or a double click opens a record: its updates, their publishers' words, the line of a number that moved."""
    page.click(cell(2, "/id"))
    page.keyboard.press("Space")
    page.wait_for_function("document.querySelector('#record [data-part=state]').textContent === 'version 1'")
    assert page.is_hidden("#record h3")
    world.put("0001", **order(1, qty=1))
    until_text(page, 1, "/qty", "1")
    page.click("#record-close")
    page.dblclick(cell(1, "/id"))
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
