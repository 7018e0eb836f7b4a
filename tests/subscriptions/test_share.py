"""The one message for all subscriptions of a connection equals that of a model without product code."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.merge import KeyFields, apply_delta
from processor.subscriptions import message_queue
from processor.subscriptions.request.select import Select
from tests.subscriptions.desk import CALLS, Desk

FILTERS = {
    None: lambda record: True,
    "/a > 1": lambda record: record.get("a", 0) > 1,
    "/a < 3": lambda record: record.get("a", 9) < 3,
    "/s = 'x'": lambda record: record.get("s") == "x",
}
SELECTS = {
    None: {(): True},
    "[-/,+/a]": {(): False, ("a",): True},
    "[-/a]": {("a",): False},
    "[-/,+/o/p]": {(): False, ("o", "p"): True},
    "[-/,+/o,-/o/p]": {(): False, ("o",): True, ("o", "p"): False},
    "[-/o,+/o/q,-/l/p]": {("o",): False, ("o", "q"): True, ("l", "p"): False},
    "[-/,+/l/p,+/s]": {(): False, ("l", "p"): True, ("s",): True},
    "[-/,+/l/q]": {(): False, ("l", "q"): True},
    "[-/]": {(): False},
}
ABSENT = object()


def is_included(lists, path):
    """Return whether a list includes a path: the rule of its longest prefix decides; without a rule it is included."""
    for rules in lists:
        begins = [path[:length] for length in range(len(path), -1, -1) if path[:length] in rules]
        if not begins or rules[begins[0]]:
            return True
    return path[:1] == ("id",)


def project(value, lists, path=()):
    """The part of a value that the lists keep together."""
    included = is_included(lists, path)
    if isinstance(value, dict):
        members = {name: project(member, lists, (*path, name)) for name, member in value.items()}
        members = {name: member for name, member in members.items() if member is not ABSENT}
        return members if members or included or not path else ABSENT
    if isinstance(value, list):
        parts = [part for element in value if (part := project(element, lists, path)) is not ABSENT]
        return parts if parts or included else ABSENT
    return value if included else ABSENT


def is_same(one, other):
    """Return whether two JSON values are equal, apart from the order of members."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def compare(old, new, path=""):
    """The new and changed members, and the pointers of the removed ones."""
    delta, removed = {}, [f"{path}/{name}" for name in old if name not in new]
    for name, value in new.items():
        before = old.get(name, ABSENT)
        if isinstance(value, dict) and isinstance(before, dict):
            inner, gone = compare(before, value, f"{path}/{name}")
            removed += gone
            if inner:
                delta[name] = inner
        elif before is ABSENT or not is_same(before, value):
            delta[name] = value
    return delta, removed


class Wish:
    """A subscription in the model."""

    def __init__(self, sub_id, call, filtered, select, flags):
        self.sub_id, self.call, self.flags = sub_id, call, flags
        self.filter, self.select = filtered, select
        self.has_snapshot, _, self.is_delta = CALLS[call].values()
        self.received = set()
        self.bases = {}
        self.style = (select, "no_sowkey" in flags, "timestamp" in flags)

    @property
    def options(self):
        """The text of the options."""
        return ",".join([*sorted(self.flags), *([f"select={self.select}"] if self.select else [])])

    def command(self, key, old, new, version):
        """The kind of message for an update: `whole`, `delta` with its base, `oof`, or None for no message."""
        was, now = (record is not None and FILTERS[self.filter](record) for record in (old, new))
        if now and was and self.is_delta:
            lists = [SELECTS[self.select]]
            base = self.bases.pop(key, version - 1)
            if "no_empties" in self.flags and compare(project(old, lists), project(new, lists)) == ({}, []):
                self.bases[key] = base
                return None
            self.received.add(key)
            return "delta", base
        self.bases.pop(key, None)
        if now:
            self.received.add(key)
            return "whole", None
        if was and key in self.received:
            self.received.discard(key)
            return ("oof", None) if "oof" in self.flags else None
        return None


def expected(wishes, key, old, new, version):
    """The messages of one update, as plain objects."""
    ways = [(wish, way) for wish in wishes if (way := wish.command(key, old, new, version)) is not None]
    messages = []
    groups = {}
    for wish, (kind, base) in ways:
        # What a nested list takes out of its part is not seen from the change of all fields.
        is_nested = kind == "delta" and any(len(path) > 1 for path in SELECTS[wish.select])
        takes_out = is_nested and compare(*(project(record, [SELECTS[wish.select]]) for record in (old, new)))[1]
        apart = wish.style if takes_out else None
        groups.setdefault((kind == "oof", apart), []).append((wish, kind, base))
    for (is_oof, _), group in groups.items():
        lists = [SELECTS[wish.select] for wish, _, _ in group]
        flags = [wish.flags for wish, _, _ in group]
        message = {"sub_ids": {wish.sub_id for wish, _, _ in group}, "version": version}
        if is_oof:
            message["reason"] = "deleted" if new is None else "match"
            message["data"] = project(old if new is None else new, lists)
        elif any(kind == "whole" for _, kind, _ in group):
            message["data"] = project(new, lists)
        else:
            delta, removed = compare(project(old, lists), project(new, lists))
            message |= {"data": {"id": new["id"], **delta}, "removed": set(removed)}
            message["base"] = min(base for _, _, base in group)
        message["has_time"] = any("timestamp" in each for each in flags)
        message["has_key"] = not all("no_sowkey" in each for each in flags)
        messages.append(message)
    return messages


def plain(message):
    """A message in the form of the model."""
    fields = {"sub_ids": set(message.sub_ids), "version": message.version, "data": message.data}
    fields |= {"has_time": message.timestamp is not None, "has_key": message.sow_key is not None}
    if message.command == "oof":
        fields["reason"] = message.reason
    if message.delta:
        fields |= {"removed": set(message.removed), "base": message.delta_base}
    return fields


PART = st.fixed_dictionaries({}, optional={"p": st.integers(0, 1), "q": st.integers(0, 1)})
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(0, 4),
        "s": st.sampled_from(["x", "y"]),
        "o": st.one_of(PART, PART, st.just(5)),
        "l": st.lists(st.one_of(PART, st.just(7)), max_size=2),
    },
)


@st.composite
def wishes(draw):
    """Some subscriptions of one connection."""
    subscriptions = []
    for number in range(draw(st.integers(2, 4))):
        call = draw(st.sampled_from([*list(CALLS)[1:], "delta_subscribe", "sow_and_delta_subscribe"]))
        flags = ["oof", "timestamp", *(["no_empties", "no_sowkey"] if CALLS[call]["delta"] else [])]
        chosen = draw(st.sets(st.sampled_from(flags)))
        filtered, select = draw(st.sampled_from(list(FILTERS))), draw(st.sampled_from(list(SELECTS)))
        subscriptions.append(Wish(f"s{number}", call, filtered, select, chosen))
    return subscriptions


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(
    wishes(),
    st.dictionaries(st.integers(1, 2), BODIES),
    st.lists(st.tuples(st.integers(1, 2), st.one_of(BODIES, BODIES, BODIES, st.none())), max_size=10),
)
def test_an_update_sends_the_messages_of_the_model(wanted, before, writes):
    """An update is one message a command with the union of all requests; a nested list may have its own."""
    desk, records, versions = Desk(), {}, {}

    def write(key, body):
        if body is None:
            desk.delete(key)
            return records.pop(key), None
        desk.put(key, **body)
        old, records[key] = records.get(key), {"id": key, **body}
        return old, records[key]

    for key, body in before.items():
        write(key, body)
        versions[key] = 1
    for wish in wanted:
        desk.subscribe(wish.call, wish.filter, wish.options, sub_id=wish.sub_id)
        if wish.has_snapshot:
            wish.received.update(key for key, record in records.items() if FILTERS[wish.filter](record))
    desk.subscriber.take(99)
    for key, body in writes:
        if body is None and key not in records:
            continue
        old, new = write(key, body)
        versions[key] = versions.get(key, 0) + 1
        messages = [plain(message) for message in desk.subscriber.take(99)]
        model = expected(wanted, key, old, new, versions[key])
        assert sorted(messages, key=_order) == sorted(model, key=_order)


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(
    st.lists(st.sampled_from([text for text in SELECTS if text is None or "/o" in text]), min_size=2, max_size=3),
    st.lists(st.fixed_dictionaries({"o": st.one_of(PART, PART, st.just(5), st.just([]))}), min_size=2, max_size=6),
)
def test_each_subscription_has_its_own_query(selects, bodies):
    """Each client projects shared deltas by its select list and holds the query's record, also where kinds change."""
    desk, held = Desk(), [None for _ in selects]
    for number, select in enumerate(selects):
        options = None if select is None else f"select={select}"
        desk.subscribe("sow_and_delta_subscribe", None, options, sub_id=str(number))
    for body in bodies:
        desk.put(1, **body)
        for message in desk.subscriber.take(99):
            for number in map(int, message.sub_ids):
                data = copy.deepcopy(project(message.data, [SELECTS[selects[number]]]))
                held[number] = apply_delta(held[number], data, message.removed) if message.delta else data
        queries = [project({"id": 1, **body}, [SELECTS[select]]) for select in selects]
        assert all(map(is_same, held, queries)), (held, queries)


def _order(message):
    return "reason" in message, sorted(message["sub_ids"])


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(st.lists(st.sampled_from([text for text in SELECTS if text]), min_size=1, max_size=4), BODIES)
def test_a_union_includes_the_paths_of_each_list(texts, body):
    """The union of select lists sends exactly the places that one of them includes."""
    record = {"id": 1, **body}
    union = Select.union([Select(text.strip("[]"), KeyFields(("/id",))) for text in texts])
    assert union.project(record) == project(record, [SELECTS[text] for text in texts])


def test_unions_are_compiled_once_and_bounded(monkeypatch: pytest.MonkeyPatch):
    """The union of the same lists is cached for later updates, and the cache is bounded."""
    monkeypatch.setattr(message_queue, "UNIONS_MAX", 2)
    desk = Desk()
    for number in range(4):
        desk.subscribe("subscribe", f"/n{number} = 1", f"select=[-/,+/n{number}]", sub_id=str(number))
    compiled = []
    union = Select.union
    monkeypatch.setattr(Select, "union", lambda selects: compiled.append(len(selects)) or union(selects))
    for names in ("01", "01", "12", "01", "23", "01", "12"):
        desk.put(1, **{f"n{name}": 1 for name in names})
    assert len(compiled) == 4
    assert len(desk.engine._sharing._unions) == 2
