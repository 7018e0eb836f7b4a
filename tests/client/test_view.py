"""A kept view on a full disk: its reader gets an error, and with more room the view is complete again."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from processor.client import Client, View, ViewChange
from processor.errors import ConfigurationError, DiskUnusable, FilterError
from processor.kafka.admin.admin import Admin
from processor.topics.family import family_specs
from tests.client.family import PARTITIONS, Family
from tests.small_disk import small_disks
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.broker


def taken(view: View, count: int) -> list[ViewChange]:
    """The next changes, by key."""
    changes: list[ViewChange] = []
    for change in view.changes(PATIENCE_S):
        changes.append(change._replace(record=None if change.record is None else dict(change.record)))
        if len(changes) == count:
            break
    return sorted(changes, key=lambda change: change.key)


def test_a_view_is_a_mapping_of_full_records(client: Client, family: Family):
    """The view has the state of the world when the call returns, and changes only when asked to."""
    for key, n in (("a", 1), ("b", 2), ("c", -1)):
        family.sow(key, {"id": key, "n": n})
    with client.view(family.name, "/n > 0") as view:
        assert dict(view) == {"a": {"id": "a", "n": 1}, "b": {"id": "b", "n": 2}}
        assert (len(view), "a" in view, "c" in view, sorted(view)) == (2, True, False, ["a", "b"])
        family.sow("c", {"id": "c", "n": 3}, 2)
        assert "c" not in view
        assert view.refresh(PATIENCE_S) == [ViewChange("c", {"id": "c", "n": 3}, ("/id", "/n"))]
        assert view["c"] == {"id": "c", "n": 3}
        assert view.refresh() == []
    assert list(view.changes()) == []


def test_changes_list_the_changed_paths(client: Client, family: Family):
    """Changed and removed paths are JSON Pointers, a record that leaves is None, an empty update is left out."""
    family.sow("a", {"id": "a", "o": {"x": 1, "y/z": 2}, "gone": 0, "v": [1]})
    with client.view(family.name, "/hide IS NULL") as view:
        family.sow("a", {"id": "a", "o": {"x": 1, "y/z": 3}, "v": [1]}, 2)
        family.sow("a", {"id": "a", "o": {"x": 1, "y/z": 3}, "v": [1]}, 3)
        family.sow("a", {"id": "a", "o": {"x": 1, "y/z": 3}, "v": [1, 2], "new": {"p": None}}, 4)
        family.sow("a", {"id": "a", "hide": True}, 5)
        family.sow("a", {"id": "a", "back": 1}, 6)
        family.sow("a", None, 7, kind="delete")
        assert taken(view, 5) == [
            ViewChange("a", {"id": "a", "o": {"x": 1, "y/z": 3}, "v": [1]}, ("/o/y~1z",), ("/gone",)),
            ViewChange("a", {"id": "a", "o": {"x": 1, "y/z": 3}, "v": [1, 2], "new": {"p": None}}, ("/v", "/new/p")),
            ViewChange("a", None),
            ViewChange("a", {"id": "a", "back": 1}, ("/id", "/back")),
            ViewChange("a", None),
        ]
        assert len(view) == 0


def test_a_view_follows_random_writes(client: Client, family: Family, random_seed: int):
    """With random concurrent writes, rollbacks and deletes, the view ends with the topic's state."""
    choice = random.Random(random_seed)
    truth: dict[str, object] = {}

    def write() -> None:
        for version in range(150):
            changes: dict[str, object] = {}
            is_kept = choice.random() > 0.2
            with family.transaction(commit=is_kept):
                for key in choice.sample("abcdefghij", 3):
                    value = (
                        None
                        if choice.random() < 0.2
                        else {"id": key, "n": choice.randrange(4), "o": {str(version % 3): 1}}
                    )
                    changes[key] = value
                    family.write(
                        f"{family.name}.sow",
                        key,
                        value,
                        version=str(version + 1),
                        kind="delete" if value is None else "update",
                    )
            if is_kept:
                truth.update(changes)

    writer = threading.Thread(target=write)
    writer.start()
    with client.view(family.name, "/n > 0 OR /id = 'end'") as view:
        writer.join()
        family.finish()
        ends = 0
        for change in view.changes(PATIENCE_S):
            ends += change.record == {"id": "end"}
            if ends == PARTITIONS:
                break
        got = {key: record for key, record in view.items() if not key.startswith("end")}
    assert got == {key: record for key, record in truth.items() if record is not None and record["n"] > 0}  # type: ignore[index]


def test_a_kept_view_gets_only_the_changes_since(family: Family, tmp_path: Path):
    """A later run begins with the first run's records, and gets only the changes since, deletes included."""
    for key in "abcd":
        family.sow(key, {"id": key, "n": 1})
    with Client("one", family.config, view_dir=tmp_path) as client, client.view(family.name) as view:
        assert len(view) == 4
        family.sow("a", {"id": "a", "n": 2}, 2)
        assert [change.key for change in taken(view, 1)] == ["a"]
        family.sow("b", {"id": "b", "n": 2}, 2)  # Not taken by the first run.
    family.sow("c", None, 2, kind="delete")
    family.sow("e", {"id": "e", "n": 1})
    with Client("two", family.config, view_dir=str(tmp_path)) as client, client.view(family.name, "/n > 0") as view:
        assert {key: record["n"] for key, record in view.items()} == {"a": 2, "b": 1, "c": 1, "d": 1}
        assert taken(view, 3) == [
            ViewChange("b", {"id": "b", "n": 2}, ("/n",)),
            ViewChange("c", None),
            ViewChange("e", {"id": "e", "n": 1}, ("/id", "/n")),
        ]
    with Client("three", family.config, view_dir=tmp_path) as client, client.view(family.name) as view:
        assert sorted(view) == ["a", "b", "d", "e"]
        assert view.refresh(1) == []


def fail_at_the_first_change(client: Client, family: Family) -> None:
    """Raise while a change is being handled."""
    with client.view(family.name) as view:
        for _ in view.changes(PATIENCE_S):
            raise ValueError("no")


def test_a_kept_view_leaves_expired_records_to_the_worker(family: Family, tmp_path: Path):
    """A kept view begins as the last run left it, expired records included, until a worker deletes them."""
    with Client("one", family.config, view_dir=tmp_path) as client, client.view(family.name) as view:
        family.sow("a", {"id": "a"}, expires_at="1")
        assert [change.key for change in view.refresh(PATIENCE_S)] == ["a"]
    with Client("two", family.config, view_dir=tmp_path) as client, client.view(family.name) as view:
        assert dict(view) == {"a": {"id": "a"}}
        family.sow("a", None, 2, kind="expire")
        assert [(change.key, change.record) for change in view.refresh(PATIENCE_S)] == [("a", None)]
    with Client("three", family.config) as client, client.view(family.name) as view:
        family.sow("a", {"id": "a"}, expires_at="1")
        assert len(view.refresh(PATIENCE_S)) == 1
    with Client("four", family.config) as client, client.view(family.name) as view:
        assert dict(view) == {}


def test_a_change_whose_handling_failed_is_sent_again(family: Family, tmp_path: Path):
    """A change whose handling failed is delivered again in the next run."""
    family.sow("a", {"id": "a", "n": 1})
    with Client("one", family.config, view_dir=tmp_path) as client:
        with client.view(family.name) as view:
            pass
        family.sow("a", {"id": "a", "n": 2}, 2)
        with pytest.raises(ValueError, match="no"):
            fail_at_the_first_change(client, family)
        with client.view(family.name) as view:
            assert view["a"]["n"] == 1
            assert [change.changed for change in taken(view, 1)] == [("/n",)]


def test_a_kept_view_spares_every_subscription_the_past(family: Family, tmp_path: Path):
    """Any subscription with state begins with the kept view; a second one at the same time reads all records."""
    family.sow("a", {"id": "a", "n": 1})
    with Client("one", family.config, view_dir=tmp_path) as client:
        list(client.sow(family.name))
        assert (tmp_path / family.name / "0" / "rocksdb").is_dir()
        first, second = client.sow_and_subscribe(family.name), client.sow_and_delta_subscribe(family.name)
        for subscription in (first, second):
            assert [next(subscription).sow_key for _ in range(3)] == [None, "a", None]
        with pytest.raises(Exception, match=f"{tmp_path / family.name} is in use"):
            Client("two", family.config, view_dir=tmp_path).sow(family.name)


def test_a_recreated_topic_has_a_new_view(family: Family, tmp_path: Path):
    """After the topic was recreated, the kept records are discarded, and none of them is delivered."""
    family.sow("a", {"id": "a", "n": 1})
    with Client("one", family.config, view_dir=tmp_path) as client:
        list(client.sow(family.name))
    admin = Admin(family.config.kafka)
    admin.delete([f"{family.name}.sow"])
    specs = family_specs(family.name, ("sow",), partitions=PARTITIONS)
    while not admin.create(specs):
        pass
    family.sow("b", {"id": "b", "n": 1})
    with Client("two", family.config, view_dir=tmp_path) as client, client.view(family.name) as view:
        assert dict(view) == {"b": {"id": "b", "n": 1}}
        assert view.refresh(0.5) == []


def test_invalid_views_are_rejected(client: Client, family: Family):
    """A view needs keys, and an invalid filter raises as in any call."""
    with pytest.raises(ConfigurationError, match="no_sowkey"):
        client.view(family.name, options="no_sowkey")
    with pytest.raises(FilterError):
        client.view(family.name, "/n >")
    with client.view(family.name, options="oof,timestamp") as view:
        assert len(view) == 0


def test_commas_within_an_option_of_a_view_divide_nothing(client: Client, family: Family):
    """A path named like an option is not taken for it, and quoted text stays unchanged."""
    family.sow("a", {"id": "a", "n": 1, "x , oof,y": 2})
    with client.view(family.name, "/n < 5", options="select=[-/, +/'x , oof,y']") as view:
        assert dict(view) == {"a": {"id": "a", "x , oof,y": 2}}
        family.sow("a", {"id": "a", "n": 9}, 2)
        assert view.refresh(PATIENCE_S) == [ViewChange("a", None)]


def test_a_quiet_partition_of_a_kept_view_does_not_grow_old(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """While no records arrive, the view confirms the end of its partitions, so that it is not discarded later."""
    monkeypatch.setattr("processor.client.feeds.engine_feed._REFRESH_S", 0.0)
    family.sow("a", {"id": "a", "n": 1})
    with Client("one", family.config, view_dir=tmp_path) as client, client.view(family.name) as view:
        view.refresh(1.0)
        before = {number: part._as_of_ms for number, part in view._subscription._feed._view._partitions.items()}  # type: ignore[attr-defined]
        view.refresh(0.2)
        after = {number: part._as_of_ms for number, part in view._subscription._feed._view._partitions.items()}  # type: ignore[attr-defined]

    assert all(after[number] > before[number] for number in before)


MB = 1 << 20


def catch_up(view: View, count: int) -> None:
    """Take the changes that the run before could not write."""
    while len(view) < count:
        assert view.refresh(PATIENCE_S)


@pytest.mark.parametrize("records", [90, 50], ids=["while reading", "at the end"])
@pytest.mark.long
def test_a_view_on_a_full_disk_raises_and_is_complete_with_more_room(
    family: Family, tmp_path: Path, records: int
) -> None:
    """At any point of a failed write, the directory is free again at once, and no record is missing."""
    rng = random.Random(5)
    truth = {str(n): {"id": str(n), "noise": rng.randbytes(100_000).hex()} for n in range(records)}
    with family.transaction():
        for key, value in truth.items():
            family.write(f"{family.name}.sow", key, value, version="1")

    with small_disks(tmp_path) as make:
        disk = make(6 * MB)
        delivered = (
            rf"(?s){disk.path}/{family.name}/\d.*No space left on device.*\d MB are free there.*make room.*view_dir"
        )
        with Client("one", family.config, view_dir=disk.path) as client:
            for _ in range(2):
                with pytest.raises(DiskUnusable, match=delivered), client.view(family.name) as view:
                    catch_up(view, records)
            disk.grow(64 * MB)
            with client.view(family.name) as view:
                catch_up(view, records)
                assert dict(view) == truth
        with Client("two", family.config, view_dir=disk.path) as client, client.view(family.name) as view:
            assert dict(view) == truth
