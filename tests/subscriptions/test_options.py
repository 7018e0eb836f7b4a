"""The options of a subscription, and the page that lists them."""

import re
from pathlib import Path

import pytest

from processor.errors import ConfigurationError
from processor.subscriptions import Engine, MemoryRecords, SubscriptionSpec, Topic
from processor.subscriptions.request.subscribe_options import Options, parse_options
from tests.subscriptions.desk import ORDERS, Desk


def parse(text=None, *, snapshot=True, live=True, delta=False, **arguments):
    """Parse the options of a subscription that accepts most of them."""
    return parse_options(text, snapshot=snapshot, live=live, delta=delta, **arguments)


def refusal(text=None, **arguments):
    """The reason for which options are refused."""
    with pytest.raises(ConfigurationError) as error:
        parse(text, **arguments)
    return str(error.value)


def test_names_separated_by_commas():
    """Options are separated by commas as in AMPS; spaces and an extra comma are ignored, and no option is required."""
    assert parse(" oof, no_empties,timestamp,", delta=True) == Options(oof=True, no_empties=True, timestamp=True)
    assert parse(None) == parse("") == parse(" , ") == Options()


def test_all_of_them_together():
    """One text may hold all options that go together, with any contents in brackets."""
    flags = "oof,no_empties,no_sowkey,send_keys,timestamp"
    text = f"{flags},select=[-/,+/id],conflation=1s,order_by=[/a, /b DESC],top_n=5,skip_n=2"
    assert parse(text, delta=True) == Options(
        oof=True,
        no_empties=True,
        no_sowkey=True,
        send_keys=True,
        timestamp=True,
        select="-/,+/id",
        conflation=1.0,
        order_by="/a, /b DESC",
        top_n=5,
        skip_n=2,
    )


def test_option_oof():
    """`oof` is refused for a snapshot, which no record can leave."""
    assert parse("oof").oof
    assert "'oof' is for subscriptions; this is a snapshot" in refusal("oof", live=False)


@pytest.mark.parametrize("name", ["no_empties", "no_sowkey", "send_keys"])
def test_options_no_empties_no_sowkey_and_send_keys(name):
    """`no_empties`, `no_sowkey` and `send_keys` are refused without deltas."""
    assert parse(name, delta=True) == Options(**{name: True})
    assert f"{name!r} is for delta subscriptions" in refusal(name)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("delta", [True, False])
def test_option_timestamp(live, delta):
    """`timestamp` is accepted in every call."""
    assert parse("timestamp", live=live, delta=delta) == Options(timestamp=True)


@pytest.mark.parametrize(
    ("text", "select"),
    [
        ("select=[-/,+/id,+/a/b]", "-/,+/id,+/a/b"),
        ("select=-/a", "-/a"),
        ("select = [ -/ , +/'a,]b' ]", "-/ , +/'a,]b'"),
    ],
)
def test_option_select(text, select):
    """`select` takes the list between the brackets, which a single rule does not need; quotes may hold anything."""
    assert parse(text, live=False) == Options(select=select)
    assert parse(f"timestamp,{text},oof").select == select


@pytest.mark.parametrize(
    ("text", "conflation"),
    [("500ms", 0.5), ("5s", 5.0), ("1m", 60.0), ("2", 2.0), ("100ms", 0.1), ("auto", "auto"), ("none", "none")],
)
def test_option_conflation(text, conflation):
    """`conflation` takes an interval, `auto` or `none`; its default is None."""
    assert parse(f"conflation={text}").conflation == conflation
    assert parse(f"oof,conflation={text}", delta=True).conflation == conflation
    assert parse(conflation=conflation).conflation == conflation
    assert parse().conflation is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("99ms", "'99ms' is no interval for it; the least is 100ms"),
        ("0", "'0' is no interval"),
        (f"{'9' * 400}s", "is no interval"),
        ("-1s", "'-1s' is not an interval; write 500ms, 5s, 1m or 1h, or auto, or none"),
        ("soon", "'soon' is not an interval"),
        ("nan", "'nan' is not an interval"),
        ("inf", "'inf' is not an interval"),
    ],
)
def test_a_bad_interval_is_refused(text, problem):
    """A bad interval is refused with the accepted values."""
    refused = refusal(f"conflation={text}")
    assert refused.startswith("option 'conflation': ")
    assert problem in refused


def test_conflation_is_refused_for_a_snapshot():
    """`conflation` is refused for a snapshot, which has no updates."""
    assert "this is a snapshot" in refusal("conflation=1s", live=False)


def test_option_conflation_key():
    """`conflation_key` takes paths as in filters."""
    assert parse("conflation=1s,conflation_key=[/a, /b/c]").conflation_key == ("/a", "/b/c")
    assert parse("conflation=auto,conflation_key=/a").conflation_key == ("/a",)
    assert parse("conflation_key=[/'a,b'/c,/legs[0]/px],conflation=1s").conflation_key == ("/'a,b'/c", "/legs[0]/px")
    assert parse(conflation="1s", conflation_key=["/a", "/b"]).conflation_key == ("/a", "/b")


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ("conflation_key=[/a]", {}, "give conflation too"),
        ("conflation_key=[/a],conflation=none", {}, "give conflation too"),
        ("conflation_key=[/a],conflation=1s,oof", {}, "for whole records, without oof and top_n"),
        ("conflation_key=[/a],conflation=1s,top_n=1", {}, "for whole records, without oof and top_n"),
        ("conflation_key=[/a],conflation=1s", {"delta": True}, "for whole records, without oof and top_n"),
        ("conflation_key=[/a],conflation=1s", {"live": False}, "this is a snapshot"),
        ("conflation_key=[a],conflation=1s", {}, "'a' is not a path; write [/a,/b]"),
        ("conflation_key=[/a,],conflation=1s", {}, "'' is not a path"),
        ("conflation_key=[/a b],conflation=1s", {}, "'/a b' is not a path"),
    ],
)
def test_a_contradictory_conflation_key_is_refused(text, arguments, problem):
    """`conflation_key` is refused with options that contradict it, since it sends one record for several."""
    assert problem in refusal(text, **arguments)


def test_option_order_by():
    """`order_by` orders a snapshot or the records of a window."""
    assert parse("order_by=[/price DESC,/id]", live=False).order_by == "/price DESC,/id"
    assert parse("order_by=/legs[0]/px").order_by == "/legs[0]/px"
    assert parse("order_by=[IF(/a = 1, ']', /b), /'x[']").order_by == "IF(/a = 1, ']', /b), /'x['"
    assert parse("order_by=/a,top_n=3", snapshot=False).order_by == "/a"
    assert parse(order_by=["/a DESC", "/b"]).order_by == "/a DESC,/b"
    assert "orders a snapshot, or a window" in refusal("order_by=/a", snapshot=False)


def test_options_top_n_and_skip_n():
    """`top_n` and `skip_n` make a window each; `top_n=0` is an empty one."""
    assert parse("top_n=10,skip_n=20") == Options(top_n=10, skip_n=20)
    assert parse(top_n=10, skip_n="20") == Options(top_n=10, skip_n=20)
    assert [parse(text).is_window for text in ("top_n=0", "skip_n=1", "skip_n=0", "top_n=5,skip_n=0", "")] == [
        True,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("value", ["-1", "1.5", "many", "1e3", "٣", "0x1", "9" * 19])
@pytest.mark.parametrize("name", ["top_n", "skip_n"])
def test_a_bad_number_of_records_is_refused(name, value):
    """A bad number of records is refused, and so are truth values and fractions from Python."""
    problem = f"option {name!r} is {value!r}, not a number of records"
    assert problem in refusal(f"{name}={value}")
    assert problem in refusal(**{name: value})
    assert "not a number of records" in refusal(**{name: True})
    assert "not a number of records" in refusal(**{name: False})
    assert "not a number of records" in refusal(**{name: 1.0})


def test_option_bookmark():
    """`bookmark` takes the place at which a replay of full records begins."""
    assert parse("bookmark=epoch", snapshot=False).bookmark == "epoch"
    assert parse(bookmark="2026-01-01T00:00:00Z", snapshot=False).bookmark == "2026-01-01T00:00:00Z"
    assert parse("bookmark=[0:5,1:7],oof", snapshot=False) == Options(bookmark="0:5,1:7", oof=True)
    assert "use sow_and_delta_subscribe" in refusal("bookmark=now", delta=True)
    assert "replays updates; top_n and skip_n are of records" in refusal("bookmark=now,top_n=1")
    assert "replays updates; top_n and skip_n are of records" in refusal("bookmark=now,skip_n=1")
    assert "this is a snapshot" in refusal("bookmark=now", live=False)


def test_the_filter_is_no_option():
    """A filter among the options is refused with the name of its own argument."""
    assert "give it as the argument 'filter'" in refusal("filter=/a,oof")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no_empty", "there is no option 'no_empty'; did you mean 'no_empties'?"),
        ("top=5", "did you mean 'top_n'?"),
        ("=5", "there is no option ''"),
        ("OOF", "there is no option 'OOF'"),
        ("select=-/,+/id", "a value with commas is written in brackets: select=[-/,+/id]"),
        ("oof=yes", "takes no value"),
        ("oof=", "takes no value"),
        ("oof,timestamp,oof", "'oof' is given twice"),
        ("top_n=1,top_n=1", "'top_n' is given twice"),
        ("select=[-/,+/id", "begins with [ and does not end with ]"),
        ("select=[-/]x", "begins with [ and does not end with ]"),
    ],
)
def test_a_bad_option_is_refused(text, problem):
    """An unknown, repeated or malformed option is an error with its name, and is never ignored."""
    assert problem in refusal(text)


@pytest.mark.parametrize("name", ["select", "conflation", "conflation_key", "order_by", "top_n", "skip_n", "bookmark"])
@pytest.mark.parametrize("value", ["", "=", "=[]", "=[ ]"])
def test_an_option_without_its_value_is_refused(name, value):
    """An option without its value is refused with a valid example."""
    problem = refusal(f"{name}{value}")
    assert problem.startswith(f"option {name!r} needs a value, such as {name}=")
    example = problem.split("such as ")[1]
    more = "conflation=1s," if name == "conflation_key" else ""
    assert getattr(parse(more + example, snapshot=name != "bookmark"), name) is not None


def test_arguments_are_options_too():
    """Options are accepted as arguments too; None, and False for a flag, mean absent."""
    nothing = dict.fromkeys(Options._fields)
    assert parse(**nothing) == Options()
    assert parse(oof=False, no_empties=False) == Options()
    assert parse("oof", top_n=5, select=["-/", "+/id"], timestamp=True) == Options(
        oof=True, top_n=5, select="-/,+/id", timestamp=True
    )


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ("top_n=5", {"top_n": 5}, "'top_n' is given twice: in the options and as an argument"),
        (None, {"oof": "no"}, "option 'oof' is 'no', not True or False"),
        (None, {"oof": 0}, "option 'oof' is 0, not True or False"),
        (None, {"select": ""}, "needs a value"),
        (None, {"select": []}, "needs a value"),
        (None, {"topn": 5}, "did you mean 'top_n'?"),
        (None, {"oof": True, "live": False}, "this is a snapshot"),
    ],
)
def test_bad_arguments_are_refused(text, arguments, problem):
    """Bad options in arguments are refused as in a text."""
    assert problem in refusal(text, **arguments)


def test_options_grouping_and_projection():
    """`grouping` takes paths and needs `projection`, which is for groups of whole records or deltas."""
    given = parse("grouping=[/a,/b/c],projection=[SUM(/qty) AS /qty]")
    assert (given.grouping, given.projection) == (("/a", "/b/c"), "SUM(/qty) AS /qty")
    assert parse("projection=[COUNT(*) AS /count]", delta=True).grouping == ()  # One group of all records.
    assert "option 'grouping' needs 'projection'" in refusal("grouping=[/a]")
    assert "'bookmark' of records" in refusal("projection=[COUNT(*) AS /count],bookmark=epoch")
    assert "'conflation_key' of records" in refusal("projection=[COUNT(*) AS /count],conflation=1s,conflation_key=[/a]")


def test_every_option_is_tested_here():
    """Every option has a test with its name in it."""
    tests = " ".join(name for name in globals() if name.startswith("test_option"))
    assert [name for name in Options._fields if name not in tests] == []


ROOM = Path(__file__).parents[2] / "processor" / "subscriptions"
TEXT = (ROOM / "README.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_example_runs():
    """The example of the README delivers a snapshot and the updates after it."""
    [code] = CODE
    records = [Desk().record(1, b'{"id":1,"qty":20}')]
    names = {"codec": ORDERS.codec, "KeyFields": type(ORDERS.key), "partition": 1, "records": records, "now_ms": 0}
    names |= {kind.__name__: kind for kind in (Engine, MemoryRecords, Options, SubscriptionSpec, Topic)}
    *lines, last = [line.split("  #")[0].rstrip() for line in code.splitlines()]
    exec("\n".join(lines), names)
    messages = eval(last, names)
    assert [message.command for message in messages] == ["group_begin", "group_end", "publish"]


def test_the_readme_names_every_file():
    """The README's reading order names exactly the files of the folder."""
    named = set(re.findall(r"`(\w+\.py)`", TEXT))
    assert named == {path.name for path in ROOM.rglob("*.py")} - {"__init__.py"}
