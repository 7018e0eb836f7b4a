"""Preprocessing and enrichment: what third parties do to a message, when, and what becomes of their errors."""

import pytest

from processor.errors import ConfigurationError
from tests.builtin.installed import install
from tests.builtin.merging import merging, rejected
from tests.builtin.reading import bodies


@pytest.fixture(autouse=True)
def plugins(tmp_path, monkeypatch):
    """The plug-ins of `tests/builtin/installed.py` are installed."""
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def use(name, **settings):
    """A step with settings."""
    return {"use": name, "settings": settings}


class TestPreprocess:
    """Before the key."""

    def test_it_makes_the_message_and_with_it_the_key(self):
        """A keyed record that agrees only afterwards is merged; one that agrees only before is not."""
        driver = merging(preprocess=["upper_id"])
        driver.pipe_batch([("A", {"id": "a", "n": 1}, None), ("a", {"id": "a"}, None)])
        assert bodies(driver.pending_output("sow")) == [{"id": "A", "n": 1}]
        assert rejected(driver) == [("key_mismatch", "/id is 'A', but the record's key says 'a'")]

    def test_a_record_without_kafka_key_is_sent_again_under_the_key_it_makes(self):
        """As it came: there it is preprocessed as if for the first time."""
        driver = merging(preprocess=["upper_id", use("tag", text="x")])
        driver.pipe_input(None, {"id": "a"}, {"trace": "1"})
        [again] = driver.pending_output("publish")
        assert (again.key, again.value, again.headers) == (b"A", b'{"id":"a"}', [("trace", b"1")])
        driver.commit()
        assert bodies(driver.pending_output("sow")) == [{"id": "A", "tags": ["x"]}]

    def test_they_run_in_order_with_their_settings(self):
        """Each sees what the one before it made."""
        driver = merging(preprocess=[use("tag", text="x"), use("tag", text="y"), use("tag", field="more", text="z")])
        driver.pipe_input("7", {"id": 7})
        assert bodies(driver.pending_output("sow")) == [{"id": 7, "tags": ["x", "y"], "more": ["z"]}]

    def test_a_delete_is_none_of_its_business(self):
        """The Kafka key says all."""
        driver = merging(preprocess=["fails"])
        driver.pipe_batch([("7", {"id": 7}, None), ("7", {"bad": 1}, {"command": "sow_delete"})])
        assert bodies(driver.pending_output("sow")) == [{"id": 7}, None]

    def test_a_duplicate_is_skipped_before(self):
        """What is not merged is not looked at."""
        driver = merging(preprocess=["fails"])
        driver.pipe_batch([("7", body, {"client": "c", "sequence": "1"}) for body in ({"id": 7}, {"bad": 1})])
        assert rejected(driver) == []


class TestEnrich:
    """Between the key and the merge."""

    def test_it_sees_the_message_and_the_record_before(self):
        """A delta's message is the delta; what it returns is merged, compared and told."""
        driver = merging(enrich=["total"])
        driver.pipe_batch([("7", {"id": 7, "price": 3, "qty": 2}, None), ("7", {"qty": 5}, None)])
        assert bodies(driver.pending_output("sow"))[1] == {"id": 7, "price": 3, "qty": 5, "total": 15}
        assert bodies(driver.pending_output("delta"))[1] == {"id": 7, "qty": 5, "total": 15}

    def test_it_sees_what_earlier_records_of_its_batch_made(self):
        """And nothing after a delete: there is no record before."""
        driver = merging(enrich=["total"])
        records = [{"price": 3, "qty": 2}, {"price": 4}, None, {"price": 1, "qty": 1}, {"qty": 9}]
        driver.pipe_batch([("7", body, None) for body in records])
        assert [body and body["total"] for body in bodies(driver.pending_output("sow"))] == [6, 8, None, 1, 9]

    def test_it_comes_after_preprocessing(self):
        """The first may make what the second needs."""
        driver = merging(preprocess=[use("tag", field="price", text="x")], enrich=[use("total")])
        driver.pipe_input("7", {"id": 7, "qty": 2, "price": []})
        assert rejected(driver) == []
        assert bodies(driver.pending_output("sow"))[0]["total"] == ["x", "x"]

    def test_what_it_does_to_the_record_before_has_no_effect(self):
        """Every enricher has a copy of its own."""
        driver = merging(enrich=["spoil", "total"])
        driver.pipe_batch([("7", {"id": 7, "price": 3, "qty": 2}, None), ("7", {"qty": 5}, None)])
        assert bodies(driver.pending_output("sow"))[1] == {"id": 7, "price": 3, "qty": 5, "total": 15}

    @pytest.mark.parametrize("command", ["publish", "delta_publish"])
    def test_it_cannot_change_the_key(self, command):
        """The record is on the partition of its key."""
        driver = merging(enrich=["rename"])
        driver.pipe_input("7", {"id": 7}, {"command": command})
        assert [reason for reason, _ in rejected(driver)] == ["key_mismatch"]

    def test_a_publish_meets_the_record_before_too(self):
        """It replaces it all the same."""
        driver = merging(enrich=["total"])
        driver.pipe_batch([("7", {"price": 3, "qty": 2, "a": 1}, None), ("7", {"qty": 5}, {"command": "publish"})])
        assert bodies(driver.pending_output("sow"))[1] == {"qty": 5, "total": 15, "id": "7"}


class TestFailures:
    """A plug-in that fails rejects its record only."""

    @pytest.mark.parametrize("stage", ["preprocess", "enrich"])
    def test_one_that_raises(self, stage):
        """The neighbours are merged; the dead letter has the plug-in's name and its error."""
        driver = merging(**{stage: ["fails"]})
        driver.pipe_batch([("7", body, None) for body in ({"id": 7, "n": 1}, {"bad": 1}, {"n": 2})])
        assert bodies(driver.pending_output("sow")) == [{"id": 7, "n": 1}, {"id": 7, "n": 2}]
        assert rejected(driver) == [("plugin_failed", "fails raised ValueError: it is bad")]

    @pytest.mark.parametrize("stage", ["preprocess", "enrich"])
    def test_one_that_returns_no_object(self, stage):
        """The same."""
        driver = merging(**{stage: ["nothing"]})
        driver.pipe_input("7", {"id": 7})
        assert rejected(driver) == [("plugin_failed", "nothing returned null; a message is an object")]

    def test_one_that_rejects_says_how(self):
        """With the reason and the detail that it chose."""
        driver = merging(preprocess=["refuses"])
        driver.pipe_input("7", {"id": 7})
        assert rejected(driver) == [("schema_mismatch", "not today")]

    def test_a_value_that_cannot_be_written(self):
        """The message type says which."""
        driver = merging(enrich=["unwritable"])
        driver.pipe_batch([("7", {"id": 7}, None), ("8", {"id": 8}, None)])
        assert [reason for reason, _ in rejected(driver)] == ["schema_mismatch"] * 2
        assert driver.state.get_many([b"7"]) == {b"7": None}

    def test_without_a_kafka_key_too(self):
        """Its key cannot be known."""
        driver = merging(preprocess=["fails"])
        driver.pipe_input(None, {"id": 7, "bad": 1})
        assert [reason for reason, _ in rejected(driver)] == ["plugin_failed"]


@pytest.mark.parametrize(("settings", "message"), [
    ({"preprocess": ["upper-id"]}, r"orders: there is no preprocessor 'upper-id'; did you mean 'upper_id'\?"),
    ({"enrich": ["upper_id"]}, r"orders: there is no enricher 'upper_id'; known: fails, nothing, rename"),
    ({"preprocess": [use("tag", word="x")]}, r"orders: preprocessor 'tag' does not take its settings: .*'word'"),
    ({"preprocess": ["fussy"]}, r"orders: preprocessor 'fussy' does not take its settings: no such table"),
    ({"preprocess": ["gone"]}, r"orders: preprocessor 'gone': tests\.builtin\.installed:not_there cannot be loaded: "),
    ({"preprocess": ["no_function"]}, r"orders: preprocessor 'no_function' \(.*\) made no function of its settings"),
])  # fmt: skip
def test_a_step_that_cannot_be_made_stops_the_start(settings, message):
    """With what is wrong, and the name that was meant."""
    with pytest.raises(ConfigurationError, match=message):
        merging(**settings)
