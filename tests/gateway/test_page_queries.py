"""The page in a real Chromium: filters, orders and columns, and the links and views that keep them."""

from __future__ import annotations

from tests.gateway.browsing import NEEDS, SETTLED, SIGHT, ask, columns, header, linked, shot, until_text
from tests.waiting import until

pytestmark = NEEDS


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


def test_times_are_filtered_as_instants_in_the_zone_of_the_reader(page, browser, world):
    """Before, after and between take times as the grid shows them, of texts in any zone; the link holds elsewhere."""
    fault = "document.querySelector('#fault').textContent"
    rows = "document.querySelector('#rows').textContent"
    world.put("zoned", at="2026-11-27T18:05:00+09:00", customer="Eve")
    page.wait_for_function(f"{rows} === '201' && {SETTLED}")

    def choose(name):
        page.locator(".ag-filter .ag-filter-select").first.click()
        page.click(f".ag-select-list-item:has-text('{name}')")

    def fill(*texts):
        for field, one in zip(page.locator(".ag-filter input[type=text]:visible").all(), texts, strict=False):
            field.fill(one)

    page.hover(header("/at"))
    page.click('#grid .ag-header-cell[col-id="/at"] .ag-header-cell-filter-button')
    fill("10:05")
    page.wait_for_function(f"{fault}.startsWith('10:05 is no time.')")
    fill("2026-11-27 10:02")
    page.wait_for_function(f"{rows} === '8' && {fault} === ''")
    choose("After")
    fill("2026-11-27T09:58:46.118Z")
    page.wait_for_function(f"{rows} === '4'")
    choose("Between")
    fill("2026-11-27 10:05", "2026-11-27 10:05:30")
    page.wait_for_function(f"{rows} === '1' && location.hash.includes('filterTo') && {SETTLED}")
    shot(page, "columns")
    elsewhere = browser.new_context(timezone_id="Asia/Tokyo", bypass_csp=True)
    other = elsewhere.new_page()
    other.goto(page.url)
    other.wait_for_function(f"{rows} === '1' && {SETTLED}")
    until_text(other, 0, "/customer", "Eve")
    model = other.evaluate("window.sowstreamPage.grid.api.getFilterModel()['/at']")
    assert [model["filter"], model["filterTo"]] == ["2026-11-27 18:05:00", "2026-11-27 18:05:30"]
    elsewhere.close()


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
