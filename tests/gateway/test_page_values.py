"""The page in a real Chromium: values as they are, each row in its place, and edits that change nothing else."""

from __future__ import annotations

import json
import random
import threading
import urllib.parse

import pytest

from tests.gateway.browsing import NEEDS, PATIENCE_MS, SETTLED, SIGHT, cell, go, header, shot
from tests.gateway.memory import MemoryWorld
from tests.gateway.test_digits import RECORD

pytestmark = NEEDS
ODD = 9007199254740993
FAULT = "document.querySelector('#fault').textContent"


@pytest.fixture(scope="module")
def shared():
    """A gateway with three topics."""
    made = MemoryWorld("orders", "fills", "numbers", keys={"fills": ("/k/a", "/k/b")})
    yield made
    made.close()


@pytest.fixture
def world(shared):
    """The gateway with its records."""

    def fill():
        for feed in shared.feeds.values():
            for key in list(feed.records):
                feed.write(key.decode(), None)
        decode = shared.feeds["orders"].topic.codec.decode
        shared.feeds["orders"].write("x", decode(RECORD.encode()))
        for key in (ODD - 1, ODD):
            shared.feeds["orders"].write(key, {"id": key, "qty": 5, "note": "n", "open": True, "legs": [1, ODD]})
        for a in (1, 2):
            shared.feeds["fills"].write(f'["{a}","b"]', {"k": {"a": a, "b": "b"}, "qty": 5})
        for key in range(1, 301):
            shared.feeds["numbers"].write(key, number(key))

    shared.gateway.call(fill)
    return shared


def number(key, half=None):
    """A record with a value of each kind; some fields are null, or not there."""
    at = f"2026-11-{1 + key % 27:02d}T{key % 24:02d}:00:{key % 60:02d}Z"
    record = {
        "id": key,
        "half": key / 2 if half is None else half,
        "text": f"t{key * 7 % 13}",
        "at": at,
        "open": key % 3 == 0,
    }
    record["mixed"] = [None, key, str(key), f"{key}x", key % 2 == 0, key + 2**60][key % 6]
    return record if key % 5 else record | {"deep": {"long": key % 4 * 10**18 + key}}


@pytest.fixture
def opened(browser, world):
    """Opens the page on a topic; the frames that it sends are in `page.sent`."""
    pages = []

    def open_topic(topic):
        page = browser.new_page(viewport={"width": 1300, "height": 800}, bypass_csp=True)
        page.set_default_timeout(PATIENCE_MS)
        page.sent, page.faults = [], []
        page.on("pageerror", lambda error: page.faults.append(str(error)))

        def keep(frame):
            page.sent.append(frame)

        page.on("websocket", lambda socket: socket.on("framesent", keep))
        go(page, world, f"topic={topic}")
        pages.append(page)
        return page

    yield open_topic
    for page in pages:
        page.close()
        assert page.faults == []


def text_of(world, key, topic="orders"):
    """The text of a record in the topic."""
    record = world.gateway.call(lambda: world.feeds[topic].records.get(str(key).encode()))
    return None if record is None else record.value.rstrip().decode()


def place_of(page, key):
    """The place of a record in the grid."""
    place = f"window.sowstreamPage.grid.window.rows.findIndex((row) => row.key === {json.dumps(str(key))})"
    page.wait_for_function(f"{SETTLED} && {place} >= 0")
    return page.evaluate(place)


def begin_edit(page, key, field):
    """Open the cell of a record and a field."""
    page.evaluate(f"window.sowstreamPage.grid.api.ensureColumnVisible('/{field}')")
    page.dblclick(cell(place_of(page, key), f"/{field}"))
    page.wait_for_selector("#grid .ag-cell-inline-editing")


def edit(page, key, field, text=None):
    """Edit a cell; None: Enter without a change."""
    begin_edit(page, key, field)
    if text is not None:
        page.keyboard.press("Control+A")
        page.keyboard.press("Delete")
        page.keyboard.type(text)
    page.keyboard.press("Enter")


def published(page):
    """The publishes that a page has sent."""
    requests = [json.loads(frame) for frame in page.sent]
    return [one for one in requests if one["op"].endswith("publish")]


def shown(page, key, field):
    """The text of a cell without groups of digits and the room that aligns it."""
    page.evaluate(f"window.sowstreamPage.grid.api.ensureColumnVisible('/{field}')")
    page.wait_for_selector(cell(place_of(page, key), f"/{field}"))
    return page.text_content(cell(place_of(page, key), f"/{field}")).strip().replace(",", "")


def test_long_numbers_are_shown_as_they_are(opened, world):
    """The page shows ids and numbers with every digit, and objects with those in them."""
    page = opened("orders")
    members = json.loads(RECORD, parse_int=str, parse_float=str)
    deep = members.pop("deep")
    assert {name: shown(page, "x", name) for name in members} == members
    assert deep[0]["long"] in shown(page, "x", "deep")
    assert shown(page, ODD, "id") == str(ODD)


def test_an_edit_names_its_record_and_sends_the_edited_path_alone(opened, world):
    """An edit of a record with an id beyond 53 bits changes that record in one field, and no other."""
    page = opened("orders")
    before = {key: text_of(world, key) for key in (ODD - 1, ODD)}
    edit(page, ODD, "qty", "77")
    page.wait_for_function("window.sowstreamPage.edits.count === 1")
    [request] = published(page)
    assert (request["op"], request["key"], request["data"]) == ("delta_publish", str(ODD), {"qty": 77})
    assert text_of(world, ODD - 1) == before[ODD - 1]
    assert text_of(world, ODD) == before[ODD].replace('"qty":5', '"qty":77')


def test_an_edit_keeps_every_digit(opened, world):
    """A long number that is typed is stored with its digits."""
    page = opened("orders")
    edit(page, "x", "long", "0.9876543210987654321")
    page.wait_for_function("window.sowstreamPage.edits.count === 1")
    assert text_of(world, "x") == RECORD.replace('"long":0.1234567890123456789,"p', '"long":0.9876543210987654321,"p')


def test_enter_without_a_change_sends_nothing(opened, world):
    """An edit that changes no character is none."""
    page = opened("orders")
    before = text_of(world, ODD)
    for field in ("qty", "note", "open", "legs"):
        edit(page, ODD, field)
        page.wait_for_selector("#grid .ag-cell-inline-editing", state="detached")
    edit(page, ODD, "qty", "4711")
    page.wait_for_function("window.sowstreamPage.edits.count === 1")
    assert [request["data"] for request in published(page)] == [{"qty": 4711}]
    assert text_of(world, ODD) == before.replace('"qty":5', '"qty":4711')


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        ("qty", "abc", "The field holds a number, and abc is none."),
        ("qty", "1,000", "The field holds a number, and 1,000 is none. Write 1000."),
        ("qty", "", "The field holds a number, and nothing is none."),
        ("qty", "NaN", "The field holds a number, and NaN is none."),
        ("qty", "true", "The field holds a number, and true is none."),
        ("qty", '"7"', 'The field holds a number, and "7" is none.'),
        ("open", "yes", "The field holds a boolean, and yes is none. Write true or false."),
        ("open", "1", "The field holds a boolean, and 1 is none. Write true or false."),
        ("legs", "1", "The field holds an array, and 1 is none."),
    ],
)
def test_a_value_of_another_kind_is_refused_in_its_cell(opened, world, field, text, says):
    """A text that is no value of the field's kind stays in its cell with a message, and nothing is sent."""
    page = opened("orders")
    before = text_of(world, ODD)
    edit(page, ODD, field, text)
    page.wait_for_function(f"{FAULT} === {json.dumps(says)}")
    assert page.evaluate("document.querySelector('#grid .ag-cell-inline-editing input').value") == text
    page.keyboard.press("Escape")
    page.wait_for_selector("#grid .ag-cell-inline-editing", state="detached")
    page.wait_for_function(f"{FAULT} === ''")
    assert published(page) == []
    assert text_of(world, ODD) == before


@pytest.mark.parametrize(
    ("field", "text", "stored"),
    [
        ("note", "7", '"note":"7"'),
        ("note", "1,000", '"note":"1,000"'),
        ("note", "", '"note":""'),
        ("open", "false", '"open":false'),
        ("legs", "[2]", '"legs":[2]'),
        ("qty", "-1.5e3", '"qty":-1500'),
    ],
)
def test_an_edit_keeps_the_kind_of_the_value(opened, world, field, text, stored):
    """An edit of a text is stored as a text, of a number as a number, of an array as an array."""
    page = opened("orders")
    edit(page, ODD, field, text)
    page.wait_for_function("window.sowstreamPage.edits.count === 1")
    assert stored in text_of(world, ODD)


def test_a_record_with_a_key_of_several_fields_is_edited(opened, world):
    """A record whose key has several fields, in an object, is edited by its key; the key's fields are not."""
    page = opened("fills")
    edit(page, '["2","b"]', "qty", "6")
    page.wait_for_function("window.sowstreamPage.edits.count === 1")
    assert text_of(world, '["1","b"]', "fills") == '{"k":{"a":1,"b":"b"},"qty":5}'
    assert text_of(world, '["2","b"]', "fills") == '{"k":{"a":2,"b":"b"},"qty":6}'
    for column in ("/k/a", "SOW_KEY()"):
        page.dblclick(cell(0, column))
        assert page.evaluate("document.querySelector('#grid .ag-cell-inline-editing')") is None


def test_an_edit_brings_no_record_back(opened, world):
    """A record that was deleted while it was edited stays deleted, and the page says so."""
    page = opened("orders")
    begin_edit(page, ODD, "qty")
    world.delete(ODD)
    page.wait_for_function(f"!window.sowstreamPage.grid.window.rows.some((row) => row.key === '{ODD}')")
    page.keyboard.press("Control+A")
    page.keyboard.type("77")
    page.keyboard.press("Enter")
    page.wait_for_function(f"{FAULT}.includes('The change was not made')")
    assert text_of(world, ODD) is None


def order_of(world, order, topic="numbers"):
    """The keys in the gateway's order."""
    asked = urllib.parse.urlencode({"order_by": order, "select": "-/", "top_n": 5000})
    _, _, body = world.gateway.get(f"/v1/topics/{topic}/sow?{asked}")
    return [json.loads(line)["sow_key"] for line in body.splitlines()]


def seen_by_scrolling(page, step=1.0):
    """The keys that stand in the grid, place by place, from its first row to its last one."""
    seen = {}
    page.evaluate("window.sowstreamPage.grid.api.ensureIndexVisible(0, 'top')")
    sight = f"({SIGHT})('/id')"
    filled = f"{SETTLED} && {sight}.length > 5 && {sight}.every(([, text]) => text)"
    for _ in range(400):
        page.wait_for_function(filled)
        rows = page.evaluate(SIGHT, "/id")
        places, keys = [place for place, _ in rows], [key for _, key in rows]
        assert places == list(range(places[0], places[0] + len(places)))
        assert len(set(keys)) == len(keys)
        seen.update(rows)
        if places[-1] == int(page.inner_text("#rows").replace(",", "")) - 1:
            break
        page.evaluate(
            f"window.sowstreamPage.grid.api.ensureIndexVisible({places[0] + max(1, int(len(rows) * step))}, 'top')"
        )
        page.wait_for_function(f"({SIGHT})('/id')[0]?.[0] > {places[0]}")
    return [seen[place] for place in sorted(seen)]


@pytest.mark.parametrize(
    ("field", "order"),
    [
        (None, "SOW_KEY()"),
        ("id", "/id"),
        ("half", "/half"),
        ("text", "/text"),
        ("at", "/at"),
        ("open", "/open"),
        ("mixed", "/mixed"),
        ("deep/long", "/deep/long"),
    ],
)
def test_every_row_stands_once_in_its_place_in_each_order(opened, world, field, order):
    """From end to end, the rows of the grid are those of a query in the same order, rising and falling."""
    page = opened("numbers")
    if field is None:
        assert seen_by_scrolling(page) == order_of(world, order)
        return
    page.evaluate(f"window.sowstreamPage.grid.api.ensureColumnVisible('/{field}')")
    for words in (order, f"{order} DESC"):
        page.click(header(f"/{field}"))
        page.wait_for_function(f"window.sowstreamPage.grid.window.orderBy === {json.dumps(words)}")
        assert seen_by_scrolling(page) == order_of(world, words)


def test_rows_stay_in_order_and_complete_while_they_move(opened, world):
    """In each picture, while records come, go and move, no row is there twice and each stands in its order."""
    page = opened("numbers")
    page.click(header("/half"))
    page.wait_for_function("window.sowstreamPage.grid.window.orderBy === '/half'")
    page.wait_for_function(SETTLED)
    page.evaluate(
        """(sight) => {
      window.pictures = { count: 0, wrong: [] };
      const look = eval(sight);
      const watch = () => {
        const keys = look('/id').filter(([, text]) => text);
        const halves = look('/half').filter(([, text]) => text).map(([, text]) => Number(text.replaceAll(',', '')));
        window.pictures.count += 1;
        if (new Set(keys.map(([, key]) => key)).size !== keys.length) window.pictures.wrong.push(['twice', keys]);
        if (halves.some((half, at) => at && half < halves[at - 1])) window.pictures.wrong.push(['order', halves]);
        requestAnimationFrame(watch);
      };
      watch();
    }""",
        SIGHT,
    )
    chance = random.Random(7)

    def churn():
        feed = world.feeds["numbers"]
        for _ in range(40):
            key = chance.randint(1, 350)
            if chance.random() < 0.2 and str(key).encode() in feed.records:
                feed.write(key, None)
            else:
                feed.write(key, number(key, chance.randint(0, 350) / 2))

    for turn in range(60):
        world.gateway.call(churn)
        if turn % 3 == 0:
            page.evaluate(f"window.sowstreamPage.grid.api.ensureIndexVisible({chance.randint(0, 250)}, 'top')")
        page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    assert page.evaluate("window.pictures.wrong.slice(0, 3)") == []
    assert page.evaluate("window.pictures.count") > 60
    assert seen_by_scrolling(page) == order_of(world, "/half")


def test_rows_of_a_large_topic_are_in_their_places(browser):
    """At the end and in the middle of 200,000 records the grid shows the records of these places, to the row."""
    world = MemoryWorld("numbers")
    page = browser.new_page(viewport={"width": 1300, "height": 500}, bypass_csp=True)
    page.set_default_timeout(PATIENCE_MS)
    try:
        feed = world.feeds["numbers"]
        for begin in range(0, 200_000, 20_000):
            world.gateway.call(
                lambda keys: [feed.write(key, {"id": key}) for key in keys], range(begin, begin + 20_000)
            )
        go(page, world, "topic=numbers")
        for place in (199_999, 100_000, 1):
            page.evaluate(f"window.sowstreamPage.grid.api.ensureIndexVisible({place})")
            page.wait_for_function(f"document.querySelector('{cell(place, '/id')}')?.textContent === '{place}'")
        first = f"({SIGHT})('/id')[0]"
        page.evaluate("window.sowstreamPage.grid.api.ensureIndexVisible(150_001, 'top')")
        page.wait_for_function(f"{first}?.join() === '150001,150001'")
        # With less height AG Grid scrolls in larger steps, and a jump comes to rest next to its row.
        assert page.evaluate("document.querySelector('#grid .ag-grid-viewport').scrollHeight") >= 28 * 200_000
    finally:
        page.close()
        world.close()


def test_another_query_begins_at_its_first_row_unless_the_user_has_scrolled_since(opened):
    """A jump after another order was asked for is kept, also if the answer to the subscription comes after it.

    It is held back here. The rows come by a query of their own.
    """
    page = opened("numbers")
    first = f"({SIGHT})('/id')[0]?.[0]"
    page.evaluate("window.sowstreamPage.grid.api.ensureIndexVisible(200, 'top')")
    page.wait_for_function(f"{first} > 190 && {SETTLED}")
    page.fill("#filter", "/id < 290")
    page.keyboard.press("Enter")
    page.wait_for_function(f"document.querySelector('#rows').textContent === '289' && {first} === 0")
    page.evaluate(
        "() => { const { connection } = window.sowstreamPage; const replace = connection._replace.bind(connection);"
        "const held = new Promise((resolve) => { window.release = resolve; });"
        "connection._replace = async (view, changes) => { const ack = await replace(view, changes);"
        "if (changes.orderBy) await held; return ack; }; }"
    )
    page.click(header("/text"))
    page.wait_for_function(f"window.sowstreamPage.grid.window.orderBy === '/text' && {SETTLED}")
    page.evaluate("window.sowstreamPage.grid.api.ensureIndexVisible(150, 'top')")
    page.wait_for_function(f"{first} > 140 && {SETTLED}")
    place = page.evaluate(first)
    page.evaluate("window.release()")
    page.wait_for_function("location.hash.includes('text')")
    page.wait_for_function(SETTLED)
    assert page.evaluate(first) == place


def test_a_gateway_that_hangs_is_shown(opened, world):
    """The age of the last sign of life is shown, and the grid is grey while it is above five seconds."""
    page = opened("numbers")
    grey = "document.body.dataset.life === 'gone'"
    assert not page.evaluate(grey)
    goes_on = threading.Event()
    world.gateway._loop.call_soon_threadsafe(goes_on.wait, 120)
    try:
        page.wait_for_function(grey)
        assert int(page.inner_text("#age").split()[0]) >= 5
        assert page.inner_text("#state") != "connected"
        assert page.evaluate("getComputedStyle(document.querySelector('#grid')).filter") == "grayscale(1)"
        shot(page, "hung")
    finally:
        goes_on.set()
    page.wait_for_function(f"!({grey}) && document.querySelector('#state').textContent === 'connected'")


def test_a_quiet_gateway_is_alive(opened):
    """On a topic without updates the signs of life are the answers to pings."""
    page = opened("numbers")
    page.evaluate("""() => {
      window.ages = [];
      new MutationObserver(() => window.ages.push(parseInt(document.querySelector('#age').textContent)))
        .observe(document.querySelector('#age'), { childList: true, characterData: true, subtree: true });
    }""")
    page.wait_for_function("window.ages.length >= 4")
    assert max(page.evaluate("window.ages")) < 5
