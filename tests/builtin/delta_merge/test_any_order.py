"""Sequence groups: updates in any order of arrival leave the record that they leave in the order of their `by`.

The expected record is a replay of all updates, sorted by `by`, by the independent oracle. All fields of a record are in
the group, so the replay says all of it. Updates without `by` come before every other one.
"""

from __future__ import annotations

import itertools
import json
import random
from datetime import UTC, datetime
from typing import Any, ClassVar

import bson
import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec import codec_options, load_codec
from processor.config import TopicConfig
from processor.merge import apply_delta, compile_rules
from processor.testing import ProcessorTestDriver
from processor.wire.record_headers import stored_from
from tests.builtin.merging import bodies, merging, rejected, told
from tests.programs.oracle.rules import merged
from tests.programs.oracle.values import path_of, without

GROUP = {"by": "/ts", "fields": ["/a", "/o", "/n"]}
Update = tuple[str, dict[str, Any], list[str]]
"""Command, message and the pointers of header `remove`."""


def topic_of(message_type: str = "json", **settings: Any) -> TopicConfig:
    """The settings of a topic whose records are in one group."""
    return TopicConfig.model_validate(
        {"key": "explicit", "message_type": message_type, "sequence_groups": [GROUP], **settings}
    )


def replayed(updates: list[Update], topic: TopicConfig) -> dict[str, Any]:
    """The record after all updates in the order of their `by`."""

    def moment(update: Update) -> float:
        ts = update[1].get("ts", update[1].get("60"))  # FIX has tags.
        return float("-inf") if ts is None else float(ts)

    record: dict[str, Any] = {}
    for command, body, pointers in sorted(updates, key=moment):
        record = dict(body) if command == "publish" else merged(record, body, topic.null_policy, topic.merge_depth)
        for pointer in pointers:
            record = without(record, path_of(pointer))
    return record


def check_permutations(topic: TopicConfig, updates: list[Update]) -> None:
    """Send each permutation to a key of its own, and compare all records with the replay, and the deltas with them."""
    codec = load_codec(topic.message_type, codec_options(topic, name="orders"))
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    orders = list(itertools.permutations(updates))
    for number, order in enumerate(orders):
        batch = []
        for command, body, pointers in order:
            headers = {"command": command} | ({"remove": json.dumps(pointers)} if pointers else {})
            batch.append((str(number), codec.encode(body), headers))
        driver.pipe_batch(batch)
    driver.commit()
    assert driver.rejections == {}
    expected = codec.decode_own(codec.encode(replayed(updates, topic)))
    last = {record.key: record for record in driver.read_output("sow")}
    deltas: dict[bytes | None, dict[str, Any]] = {}
    for delta in driver.read_output("delta"):
        removed = json.loads(told(delta).get("removed", "[]"))
        deltas[delta.key] = apply_delta(deltas.get(delta.key), codec.decode_own(delta.value), removed)
        assert "group_stamps" not in told(delta)
    for number, order in enumerate(orders):
        key = str(number).encode()
        record = codec.decode_own(last[key].value)
        assert record == expected, (order, told(last[key]).get("group_stamps"))
        assert deltas[key] == record


def some_updates(rng: random.Random, count: int, *, is_flat: bool, has_null: bool, is_text: bool) -> list[Update]:
    """Random updates with distinct values of `by`, of which one may have none."""
    moments: list[int | None] = [100 * number for number in range(1, count + 1)]
    if rng.random() < 0.3:
        moments[0] = None
    nulls = [None] if has_null else []

    def scalar() -> Any:
        value = rng.choice([1, 2, 3, *nulls])
        return str(value) if is_text and value is not None else value

    def inner() -> Any:
        chance = rng.random()
        if is_flat or chance < 0.25:
            return scalar()
        if chance < 0.35:
            return rng.choice([{}, [], [1, 2]])
        return {name: rng.choice([scalar(), scalar(), {"p": scalar()}]) for name in "xyz" if rng.random() < 0.5}

    updates: list[Update] = []
    for moment in moments:
        body: dict[str, Any] = {} if moment is None else {"ts": str(moment) if is_text else moment}
        for name in "aon":
            if rng.random() < 0.5:
                body[name] = inner() if name == "o" else scalar()
        if is_flat and not body:  # No message of NVFIX is empty.
            body["a"] = scalar()
        pointers = [pointer for pointer in ("/a", "/o", "/n", "/ts") if rng.random() < 0.07]
        updates.append((rng.choices(["publish", "delta_publish"], [1, 4])[0], body, pointers))
    return updates


POLICIES = [(policy, depth) for policy in ("ignore", "set", "remove") for depth in (None, 1, 2)]


@pytest.mark.parametrize(("policy", "depth"), POLICIES)
@pytest.mark.parametrize("seed", range(8))
def test_every_permutation_of_random_updates_gives_the_sorted_replay(policy, depth, seed):
    """Sparse deltas, full publishes, nulls, nested objects, scalars in their place and removals, in every order."""
    rng = random.Random(f"{seed}/{policy}/{depth}")
    updates = some_updates(rng, rng.choice([2, 3, 3, 4, 4, 5]), is_flat=False, has_null=True, is_text=False)
    check_permutations(topic_of(null_policy=policy, merge_depth=depth), updates)


FLAT = [("nvfix", True, False), ("msgpack", False, True), ("bson", False, True), ("fix", True, False)]


@pytest.mark.parametrize(("message_type", "is_text", "has_null"), FLAT)
@pytest.mark.parametrize("seed", range(6))
def test_every_permutation_in_other_message_types(message_type, is_text, has_null, seed):
    """The stamps keep the moments of texts that are numbers as those of numbers."""
    rng = random.Random(f"{seed}/{message_type}")
    updates = some_updates(rng, rng.choice([3, 4]), is_flat=is_text, has_null=has_null, is_text=is_text)
    group = GROUP
    if message_type == "fix":
        tags = {"ts": "60", "a": "1", "o": "2", "n": "3"}
        group = {"by": "/60", "fields": ["/1", "/2", "/3"]}
        updates = [
            (command, {tags[name]: value for name, value in body.items()}, [f"/{tags[one[1:]]}" for one in pointers])
            for command, body, pointers in updates
        ]
    topic = topic_of(message_type, sequence_groups=[group])
    check_permutations(topic, updates)


MOMENTS = [
    ["2024-01-01T10:00:00Z", "2024-01-01T12:30:00+02:00", "2024-01-01T10:30:00.000001Z"],
    [0.1, 1, 10**30],
    ["9", "10", "10.5"],
    ["a", "b", "ba"],
]


@pytest.mark.parametrize("calamity", ["crash", "crash and keep the disk"])
@pytest.mark.parametrize("moments", MOMENTS, ids=str)
def test_sparse_deltas_by_every_kind_of_moment(moments, calamity):
    """Instants in any zone, numbers of any size, and texts order late deltas, also after a restore of each record."""
    names = ["status", "amount", "price"]
    deltas = [{"ts": moment, names[i]: i, names[(i + 1) % 3]: i} for i, moment in enumerate(moments)]
    expected = {"ts": moments[2], "status": 2, "amount": 1, "price": 2}
    for order in itertools.permutations(deltas):
        driver = merging(key="explicit", sequence_groups=[{"by": "/ts", "fields": ["/status", "/amount", "/price"]}])
        for delta in order:
            driver.pipe_input("7", dict(delta))
            driver.commit()
            driver.write()
            driver.crash(keep_store=calamity != "crash")
        assert bodies(driver.read_output("sow"))[-1] == expected, order


def test_native_times_are_kept_as_instants():
    """BSON's datetimes order late deltas, also those that a record's stamps keep."""
    times = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    deltas = [{"ts": times[0], "a": 1, "n": 1}, {"ts": times[2], "a": 3}, {"ts": times[1], "n": 2, "o": 2}]
    for order in itertools.permutations(deltas):
        driver = merging(key="explicit", message_type="bson", sequence_groups=[GROUP])
        for delta in order:
            driver.pipe_input("7", bson.encode(delta))
        record = bson.decode(driver.pending_output("sow")[-1].value)
        assert {name: record[name] for name in "aon"} == {"a": 3, "o": 2, "n": 2}


RULED = {"/a": "sum", "/n": "max", "/s": "min", "/f": "first", "/u": "union"}


@pytest.mark.parametrize("seed", range(20))
def test_rules_that_commute_count_late_values(seed):
    """Under every order of deltas, sums, extremes and unions are those of all values, and `first` is the oldest one."""
    rng = random.Random(seed)
    group = {"by": "/ts", "fields": ["/a", "/n", "/s", "/f", "/u", "/free"]}
    deltas = [
        {"ts": ts, **{name: [ts % 3] if name == "/u" else ts * 7 % 11 for name in rng.sample([*"ansfu", "free"], 3)}}
        for ts in range(1, 5)
    ]
    for delta in deltas:
        delta.pop("u", None)
        delta["u"] = [delta["ts"] % 3]
    having = {name: [d[name] for d in deltas if name in d] for name in ("a", "n", "s", "f", "free")}
    expected = {
        "ts": 4, "a": sum(having["a"]), "n": max(having["n"], default=None), "s": min(having["s"], default=None),
        "f": next(iter(having["f"]), None), "free": next(reversed(having["free"]), None), "u": {0, 1, 2},
    }  # fmt: skip
    for order in itertools.permutations(deltas):
        driver = merging(key="explicit", sequence_groups=[group], merge_rules=RULED)
        driver.pipe_batch([("7", dict(delta), None) for delta in order])
        record = bodies(driver.pending_output("sow"))[-1]
        assert {**record, "u": set(record["u"])} == {n: v for n, v in expected.items() if having.get(n, True)}, order


def test_a_record_without_stamps_is_as_old_as_its_by():
    """A record of an earlier version has no stamps: no older delta adds a field to it, and newer ones begin stamps."""
    driver = merging(key="explicit", sequence_groups=[{"by": "/ts", "fields": ["/status", "/amount"]}])
    driver.pipe_input("7", {"ts": 200, "status": "b"}, {"command": "publish"})
    assert "group_stamps" not in told(driver.pending_output("sow")[-1])
    driver.pipe_input("7", {"ts": 150, "amount": 20})
    assert bodies(driver.pending_output("sow"))[-1] == {"ts": 200, "status": "b"}
    driver.pipe_input("7", {"ts": 250, "status": "c"})
    driver.pipe_input("7", {"ts": 220, "amount": 22})
    assert bodies(driver.pending_output("sow"))[-1] == {"ts": 250, "status": "c", "amount": 22}


def test_deltas_that_carry_the_whole_group_pay_nothing():
    """A record all of whose fields are as new as its `by` has no stamps."""
    driver = merging(key="explicit", sequence_groups=[GROUP])
    for ts in (1, 3, 2):
        driver.pipe_input("7", {"ts": ts, "a": ts, "o": ts, "n": ts, "free": ts})
    assert ["group_stamps" in told(record) for record in driver.pending_output("sow")] == [False] * 3
    assert bodies(driver.pending_output("sow"))[-1] == {"ts": 3, "a": 3, "o": 3, "n": 3, "free": 2}


def test_stamps_have_a_limit_and_a_full_publish_ends_them():
    """Stamps beyond the limit reject the command as `too_large` with the remedy, and the record stays as it was."""
    driver = merging(key="explicit", null_policy="remove", sequence_groups=[GROUP])
    driver.pipe_input("7", {"ts": 1, "o": {"x": 1}})
    for ts in range(2, 9):
        driver.pipe_input("7", {"ts": ts, "o": {f"{ts}{'x' * 1000}{number}": None for number in range(10)}})
    assert [reason for reason, _ in rejected(driver)] == ["too_large"] * 3
    assert "publish the record in full" in rejected(driver)[0][1]
    driver.pipe_input("7", {"ts": 10, "o": {"x": 2}}, {"command": "publish"})
    assert "group_stamps" not in told(driver.pending_output("sow")[-1])


def test_a_publisher_cannot_send_stamps():
    """Header `group_stamps` of a command is dropped: a record has no stamps but its worker's."""
    driver = merging(key="explicit", sequence_groups=[GROUP])
    driver.pipe_input("7", {"ts": 5, "a": 1, "o": 1, "n": 1}, {"group_stamps": '{"/ts":{"d":null}}'})
    assert "group_stamps" not in told(driver.pending_output("sow")[-1])
    driver.pipe_input("7", {"ts": 4, "a": 2})
    assert bodies(driver.pending_output("sow"))[-1]["a"] == 1


class TestHeal:
    """A record that `topics heal` publishes again is as it was, also for updates that are late."""

    LATE: ClassVar = [{"ts": ts, "a": ts, "n": ts, "o": {"x": ts, "y": ts}} for ts in (1, 4, 6, 9, 15)]

    @staticmethod
    def heal(driver: ProcessorTestDriver, copy: Any, version: int) -> None:
        """Publish a SOW record as `topics heal` does."""
        headers = {"command": "publish", "source": "orders.publish/heal", "expect_version": str(version)}
        stamps = {name: text.decode() for name, text in copy.headers if name == "group_stamps"}
        driver.pipe_input("7", json.loads(copy.value), headers | stamps)

    @pytest.mark.parametrize("late", LATE, ids=str)
    @pytest.mark.parametrize("has_own", [False, True])
    def test_it_keeps_its_stamps(self, late, has_own):
        """At home, with no record there or with itself, a late update finds the fields as old as they were."""
        original = merging(key="explicit", sequence_groups=[GROUP])
        for delta in ({"ts": 3, "a": 3, "o": {"x": 3}}, {"ts": 8, "n": 8}, {"ts": 5, "o": {"y": 5}}):
            original.pipe_input("7", delta)
        copy = original.pending_output("sow")[-1]
        home = original if has_own else merging(key="explicit", sequence_groups=[GROUP])
        self.heal(home, copy, int(told(copy)["version"]) if has_own else 0)
        healed = home.pending_output("sow")[-1]
        assert (healed.value, told(healed)["group_stamps"]) == (copy.value, told(copy)["group_stamps"])
        expected = merging(key="explicit", sequence_groups=[GROUP])
        for delta in ({"ts": 3, "a": 3, "o": {"x": 3}}, {"ts": 8, "n": 8}, {"ts": 5, "o": {"y": 5}}, late):
            expected.pipe_input("7", json.loads(json.dumps(delta)))
        home.pipe_input("7", json.loads(json.dumps(late)))
        assert bodies(home.pending_output("sow"))[-1] == bodies(expected.pending_output("sow"))[-1]

    def test_two_records_of_a_key_give_the_newer_of_each_field(self):
        """Over another record at home, each field comes from the record that has it from the newer update."""
        away, home = (merging(key="explicit", sequence_groups=[GROUP]) for _ in range(2))
        for driver, deltas in ((away, ({"ts": 2, "a": 2}, {"ts": 9, "n": 9})), (home, ({"ts": 5, "a": 5, "o": 5},))):
            for delta in deltas:
                driver.pipe_input("7", delta)
        self.heal(home, away.pending_output("sow")[-1], int(told(home.pending_output("sow")[-1])["version"]))
        assert bodies(home.pending_output("sow"))[-1] == {"ts": 9, "a": 5, "o": 5, "n": 9}
        home.pipe_input("7", {"ts": 7, "a": 7, "o": 7, "n": 7})
        assert bodies(home.pending_output("sow"))[-1] == {"ts": 9, "a": 7, "o": 7, "n": 9}

    @pytest.mark.parametrize("depth", [*range(100, 1000, 25), 100_000])
    def test_stamps_that_are_nested_deeply_end_no_worker(self, depth):
        """A publisher can write what `topics heal` does: stamps of any depth are none, and later updates are merged."""
        driver = merging(key="explicit", sequence_groups=[GROUP])
        driver.pipe_input("7", {"ts": 1, "a": 1, "o": {"x": 1}})
        stamps = '{"/ts":' + '{"m":{"/o":' * depth + "1" + "}}" * depth + "}"
        headers = {"source": "orders.publish/heal", "group_stamps": stamps, "command": "publish"}
        driver.pipe_input("7", {"ts": 2, "a": 2, "o": {"x": 2}}, headers)
        driver.pipe_input("7", {"ts": 3, "a": 3})
        assert bodies(driver.pending_output("sow"))[-1] == {"ts": 3, "a": 3, "o": {"x": 2}}
        assert not rejected(driver)


@pytest.mark.parametrize("stamps", [b"", b"no JSON", b"[1]", b'{"/ts":"x"}', b'{"/ts":{"m":7}}'], ids=repr)
def test_stamps_that_cannot_be_read_are_none(stamps):
    """A SOW record whose stamps are damaged is as old as its `by` in all fields, and can be merged into."""
    driver = merging(key="explicit", sequence_groups=[GROUP])
    driver.pipe_input("7", {"ts": 5, "a": 1})
    old = stored_from(driver.pending_output("sow")[-1])
    groups = compile_rules([("/ts", ["/a", "/n"])], {})
    delta = {"ts": 4, "a": 2, "n": 2, "x": 1}
    update = groups.update(json.loads(old.value), delta, stamps)
    update.reduce(delta)
    assert (delta, update.stale_groups) == ({"x": 1}, 1)


class TestEnrichment:
    """Enrichment computes from the values that the record gets."""

    GROUPED: ClassVar = {"key": "explicit", "enrich": {"/total": "/qty * /px"}}

    @pytest.mark.parametrize("fields", [["/px"], ["/px", "/total"]], ids=str)
    def test_a_refused_price_is_in_no_total(self, fields):
        """A late delta changes the quantity and not the price: the total is of both, in every order."""
        deltas = [{"ts": 5, "px": 10, "qty": 1}, {"ts": 1, "px": 9}, {"ts": 3, "px": 8, "qty": 2}]
        for order in itertools.permutations(deltas):
            driver = merging(**self.GROUPED, sequence_groups=[{"by": "/ts", "fields": fields}])
            driver.pipe_batch([("7", dict(delta), None) for delta in order])
            record = bodies(driver.pending_output("sow"))[-1]
            assert record["total"] == record["qty"] * 10, order

    def test_a_late_publish_is_enriched_with_the_fields_that_stay(self):
        """The expression of a late full publish sees the record's price."""
        driver = merging(**self.GROUPED, sequence_groups=[{"by": "/ts", "fields": ["/px"]}])
        driver.pipe_input("7", {"ts": 5, "px": 10, "qty": 1})
        driver.pipe_input("7", {"ts": 1, "px": 9, "qty": 2}, {"command": "publish"})
        assert bodies(driver.pending_output("sow"))[-1] == {"ts": 5, "px": 10, "qty": 2, "total": 20}

    def test_a_removed_field_is_in_no_total(self):
        """A field that header `remove` takes away is missing for an expression, unless the removal is late."""
        driver = merging(**self.GROUPED, null_policy="set", sequence_groups=[{"by": "/ts", "fields": ["/px"]}])
        driver.pipe_input("7", {"ts": 5, "px": 10, "qty": 1})
        driver.pipe_input("7", {"ts": 1, "qty": 3}, {"remove": '["/px"]'})
        assert bodies(driver.pending_output("sow"))[-1] == {"ts": 5, "px": 10, "qty": 3, "total": 30}
        driver.pipe_input("7", {"ts": 6}, {"remove": '["/px"]'})
        assert bodies(driver.pending_output("sow"))[-1] == {"ts": 6, "qty": 3, "total": None}

    def test_a_rule_is_applied_before_the_total(self):
        """An expression sees the sum and not the addend; what it computes meets its own rule."""
        driver = merging(
            key="explicit",
            enrich={"/total": "/qty * /px", "/peak": "/px"},
            merge_rules={"/qty": "sum", "/peak": "max"},
        )
        for delta in ({"px": 10, "qty": 1}, {"qty": 2}, {"px": 5}):
            driver.pipe_input("7", delta)
        record = bodies(driver.pending_output("sow"))[-1]
        assert record == {"px": 5, "qty": 3, "total": 15, "peak": 10}

    def test_an_enricher_may_set_the_field_that_a_group_goes_by(self):
        """The group then goes by the value that enrichment has set."""
        driver = merging(
            key="explicit", enrich={"/ts": "/event"}, sequence_groups=[{"by": "/ts", "fields": ["/px", "/event"]}]
        )
        for event in (5, 3, 7):
            driver.pipe_input("7", {"event": event, "px": event})
        assert [body["px"] for body in bodies(driver.pending_output("sow"))] == [5, 5, 7]
