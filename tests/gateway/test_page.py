"""The page in a real Chromium: the live grid, what it says about itself, and its looks."""

from __future__ import annotations

from tests.gateway.browsing import HINTS_FIT, NEEDS, SETTLED, ask, cell, columns, go, order, shot, text, until_text

pytestmark = NEEDS


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
