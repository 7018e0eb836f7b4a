"""The page in a real Chromium: values as they are, rows in the gateway's order, and edits that change nothing else."""

from __future__ import annotations

import json
import threading

import pytest

from tests.gateway.memory import MemoryWorld
from tests.gateway.test_digits import RECORD
from tests.gateway.test_page import PATIENCE_MS, browser, cells, pytestmark  # noqa: F401 - A fixture, and its needs.

KEYS = "[...document.querySelectorAll('#body tr')].map((line) => line.dataset.key)"
ODD = 9007199254740993


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
        for key in range(1, 121):
            shared.feeds["numbers"].write(key, {"id": key, "half": key / 2, "text": f"t{key % 7}"})

    shared.gateway.call(fill)
    return shared


@pytest.fixture
def opened(browser, world):  # noqa: F811
    """Opens the page on a topic; the frames that it sends are in `page.sent`."""
    pages = []

    def open_topic(topic, rows=1):
        page = browser.new_page(viewport={"width": 1300, "height": 500}, bypass_csp=True)
        page.set_default_timeout(PATIENCE_MS)
        page.sent, page.faults = [], []
        page.on("pageerror", lambda error: page.faults.append(str(error)))

        def keep(frame):
            page.sent.append(frame)

        page.on("websocket", lambda socket: socket.on("framesent", keep))
        page.goto(f"http://{world.gateway.address}/#topic={topic}")
        page.wait_for_function(f"document.querySelectorAll('#body tr').length >= {rows}")
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


def begin_edit(page, key, field):
    """Open the cell of a record and a field, once the rows stand in their order."""
    page.wait_for_function("window.sowstreamPage.order.size > 0 && !window.sowstreamPage.isOrdering")
    names = page.evaluate("[...document.querySelectorAll('#head th')].map((cell) => cell.textContent)")
    row = page.evaluate(KEYS).index(str(key)) + 1
    page.dblclick(f"#body tr:nth-child({row}) td:nth-child({names.index(field) + 1})")
    page.wait_for_selector("#body td input")


def edit(page, key, field, text=None):
    """Edit a cell; None: Enter without a change."""
    begin_edit(page, key, field)
    if text is not None:
        page.fill("#body td input", text)
    page.keyboard.press("Enter")


def published(page):
    """The publishes that a page has sent."""
    requests = [json.loads(frame) for frame in page.sent]
    return [one for one in requests if one["op"].endswith("publish")]


def test_long_numbers_are_shown_as_they_are(opened, world):
    """The page shows ids and numbers with every digit, and objects with those in them."""
    page = opened("orders", 3)
    page.wait_for_function(f"{KEYS}.includes('x')")
    row = page.evaluate(KEYS).index("x")
    members = json.loads(RECORD, parse_int=str, parse_float=str)
    deep = members.pop("deep")
    shown = cells(page, row)
    assert set(members.values()) <= set(shown)
    assert any(deep[0]["long"] in text for text in shown)
    assert any(str(ODD) in cells(page, at) for at in range(3))


def test_an_edit_names_its_record_and_sends_the_edited_path_alone(opened, world):
    """An edit of a record with an id beyond 53 bits changes that record in one field, and no other."""
    page = opened("orders", 3)
    before = {key: text_of(world, key) for key in (ODD - 1, ODD)}
    edit(page, ODD, "qty", "77")
    page.wait_for_function("document.querySelector('#body').textContent.includes('77')")
    [request] = published(page)
    assert (request["op"], request["key"], request["data"]) == ("delta_publish", str(ODD), {"qty": 77})
    assert text_of(world, ODD - 1) == before[ODD - 1]
    assert text_of(world, ODD) == before[ODD].replace('"qty":5', '"qty":77')


def test_an_edit_keeps_every_digit(opened, world):
    """A long number that is typed is stored with its digits."""
    page = opened("orders", 3)
    page.wait_for_function(f"{KEYS}.includes('x')")
    edit(page, "x", "long", "0.9876543210987654321")
    page.wait_for_function("document.querySelector('#body').textContent.includes('0.9876543210987654321')")
    assert text_of(world, "x") == RECORD.replace('"long":0.1234567890123456789,"p', '"long":0.9876543210987654321,"p')


def test_enter_without_a_change_sends_nothing(opened, world):
    """An edit that changes no character is none."""
    page = opened("orders", 3)
    before = text_of(world, ODD)
    for field in ("qty", "note", "open", "legs"):
        edit(page, ODD, field)
    edit(page, ODD, "qty", "4711")
    page.wait_for_function("document.querySelector('#body').textContent.includes('4711')")
    page.wait_for_function("!document.querySelector('#body td input')")
    assert [request["data"] for request in published(page)] == [{"qty": 4711}]
    assert text_of(world, ODD) == before.replace('"qty":5', '"qty":4711')


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("qty", "abc"),
        ("qty", ""),
        ("qty", "NaN"),
        ("qty", "true"),
        ("qty", '"7"'),
        ("open", "yes"),
        ("open", "1"),
        ("legs", "1"),
    ],
)
def test_a_value_of_another_kind_is_refused(opened, world, field, text):
    """A text that is no value of the field's kind is refused with a message, and nothing is sent."""
    page = opened("orders", 3)
    before = text_of(world, ODD)
    edit(page, ODD, field, text)
    page.wait_for_function("document.querySelector('#fault').textContent.includes('The change was not made')")
    assert published(page) == []
    assert text_of(world, ODD) == before


@pytest.mark.parametrize(
    ("field", "text", "stored"),
    [
        ("note", "7", '"note":"7"'),
        ("note", "", '"note":""'),
        ("open", "false", '"open":false'),
        ("legs", "[2]", '"legs":[2]'),
        ("qty", "-1.5e3", '"qty":-1500'),
    ],
)
def test_an_edit_keeps_the_kind_of_the_value(opened, world, field, text, stored):
    """An edit of a text is stored as a text, of a number as a number, of an array as an array."""
    page = opened("orders", 3)
    edit(page, ODD, field, text)
    page.wait_for_function("window.sowstreamPage.edits === 1")
    assert stored in text_of(world, ODD)


def test_a_record_with_a_key_of_several_fields_is_edited(opened, world):
    """A record whose key has several fields, in an object, is edited by its key; the key's fields are not."""
    page = opened("fills", 2)
    edit(page, '["2","b"]', "qty", "6")
    page.wait_for_function("window.sowstreamPage.edits === 1")
    assert text_of(world, '["1","b"]', "fills") == '{"k":{"a":1,"b":"b"},"qty":5}'
    assert text_of(world, '["2","b"]', "fills") == '{"k":{"a":2,"b":"b"},"qty":6}'
    page.dblclick("#body tr:nth-child(1) td:nth-child(2)")
    assert page.evaluate("document.querySelector('#body td input')") is None


def test_an_edit_brings_no_record_back(opened, world):
    """A record that was deleted while it was edited stays deleted, and the page says so."""
    page = opened("orders", 3)
    begin_edit(page, ODD, "qty")
    world.delete(ODD)
    page.wait_for_function(f"!window.sowstreamPage.view.has('{ODD}')")
    page.fill("#body td input", "77")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#fault').textContent.includes('The change was not made')")
    assert text_of(world, ODD) is None


def order_of(world, order):
    """The keys in the gateway's order."""
    _, _, body = world.gateway.get(f"/v1/topics/numbers/sow?order_by={order}&select=-/&top_n=1000")
    return [json.loads(line)["sow_key"] for line in body.splitlines()]


def test_the_order_is_the_gateways(opened, world):
    """Rows stand in the gateway's order: by key, falling, by a field, and after a record has come."""
    page = opened("numbers", 20)
    shown = f"{KEYS}.slice(0, 12).join()"
    page.wait_for_function(f"{shown} === '{','.join(order_of(world, 'SOW_KEY()')[:12])}'")
    assert order_of(world, "SOW_KEY()")[:3] == ["1", "2", "3"]
    page.select_option("#direction", " DESC")
    page.wait_for_function(f"{shown} === '{','.join(order_of(world, 'SOW_KEY()%20DESC')[:12])}'")
    page.select_option("#sort", "/half")
    page.wait_for_function(f"{shown} === '{','.join(order_of(world, '/half%20DESC')[:12])}'")
    world.gateway.call(lambda: world.feeds["numbers"].write(500, {"id": 500, "half": 59.75}))
    world.gateway.call(lambda: world.feeds["numbers"].write(3, {"id": 3, "half": 59.25}))
    page.wait_for_function(f"{shown} === '{','.join(order_of(world, '/half%20DESC')[:12])}'")
    assert order_of(world, "/half%20DESC")[:5] == ["120", "500", "119", "3", "118"]


def test_every_row_is_reached_and_none_is_shown_twice(opened, world):
    """By the arrow key alone, every row stands on the screen once, in the gateway's order, to the last one."""
    page = opened("numbers", 20)
    page.click("#body tr:nth-child(1) td:nth-child(1)")
    inside = """() => {
      const box = document.querySelector('#scroller').getBoundingClientRect();
      return [...document.querySelectorAll('#body tr')].filter((line) => {
        const { top, bottom } = line.getBoundingClientRect();
        return top >= box.top && bottom <= box.bottom + 1;
      }).map((line) => line.dataset.key);
    }"""
    wanted, seen = order_of(world, "SOW_KEY()"), []
    in_place = f"{json.dumps(wanted)}.indexOf({KEYS}[0]) === window.sowstreamPage.first"
    for _ in range(400):
        rows = page.evaluate(inside)
        assert len(rows) == len(set(rows))
        seen += [key for key in rows if key not in seen]
        if seen and seen[-1] == wanted[-1]:
            break
        page.keyboard.press("ArrowDown")
        page.wait_for_function(f"window.sowstreamPage.first === window.sowstreamPage.wanted && {in_place}")
    assert seen == wanted


def test_a_gateway_that_hangs_is_shown(opened, world):
    """The age of the last sign of life is shown, and the grid is grey while it is above five seconds."""
    page = opened("numbers", 20)
    grey = "document.body.dataset.life === 'gone'"
    assert not page.evaluate(grey)
    goes_on = threading.Event()
    world.gateway._loop.call_soon_threadsafe(goes_on.wait, 120)
    try:
        page.wait_for_function(grey)
        assert int(page.inner_text("#age").removesuffix(" s")) >= 5
        assert page.inner_text("#state") != "connected"
        assert page.evaluate("getComputedStyle(document.querySelector('#grid')).filter") == "grayscale(1)"
    finally:
        goes_on.set()
    page.wait_for_function(f"!({grey}) && document.querySelector('#state').textContent === 'connected'")


def test_a_quiet_gateway_is_alive(opened):
    """On a topic without updates the signs of life are the answers to pings."""
    page = opened("numbers", 20)
    page.evaluate("""() => {
      window.ages = [];
      new MutationObserver(() => window.ages.push(parseInt(document.querySelector('#age').textContent)))
        .observe(document.querySelector('#age'), { childList: true, characterData: true, subtree: true });
    }""")
    page.wait_for_function("window.ages.length >= 4")
    assert max(page.evaluate("window.ages")) < 5
