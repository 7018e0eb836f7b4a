"""The other headers of a command: how to merge, correlation, explicit keys, where a record came from."""

import pytest

from processor.errors import ConfigurationError
from processor.record import Stored
from processor.wire.command import PASSED_BYTES_MAX
from processor.wire.headers import UNREADABLE_NAME
from processor.wire.publisher_headers import named_headers, replay_headers
from tests.builtin.merging import bodies, merging, rejected, told


class TestAllowMerge:
    """Universal Messaging's flag chooses between the commands publish and delta_publish."""

    @pytest.mark.parametrize("default", ["publish", "delta_publish"])
    @pytest.mark.parametrize(("flag", "record"), [("true", {"id": 7, "a": 1, "b": 1}), ("false", {"b": 1, "id": 7})])
    def test_the_flag_chooses_the_command(self, default, flag, record):
        """True merges and false replaces, with any default command of the topic."""
        driver = merging(default_command=default)
        driver.pipe_batch([("7", {"id": 7, "a": 1}, None), ("7", {"b": 1}, {"allow-merge": flag})])
        sow = driver.pending_output("sow")[1]
        assert bodies([sow]) == [record]
        assert "allow-merge" not in told(sow)

    @pytest.mark.parametrize(("command", "flag"), [("publish", "false"), ("delta_publish", "true")])
    def test_both_may_name_the_same_command(self, command, flag):
        """A flag and a header that mean the same command do not contradict each other."""
        driver = merging()
        driver.pipe_input("7", {"id": 7}, {"command": command, "allow-merge": flag})
        assert rejected(driver) == []

    def test_a_delete_has_nothing_to_merge(self):
        """A delete with the flag is a delete: the flag is about publishing."""
        driver = merging()
        driver.pipe_batch([("7", {"id": 7}, None), ("7", None, {"command": "sow_delete", "allow-merge": "true"})])
        assert told(driver.pending_output("sow")[1])["kind"] == "delete"

    @pytest.mark.parametrize(("command", "flag"), [("publish", "true"), ("delta_publish", "false")])
    def test_a_contradiction_is_rejected(self, command, flag):
        """A flag and a header that mean different commands are rejected, as either could be meant."""
        driver = merging()
        driver.pipe_input("7", {"id": 7}, {"command": command, "allow-merge": flag})
        means = {"true": "delta_publish", "false": "publish"}[flag]
        assert rejected(driver) == [
            ("bad_header", f"header allow-merge means {means}, but header command says {command}")
        ]

    @pytest.mark.parametrize("flag", ["", "yes", "True", b"\xff"])
    def test_the_flag_is_true_or_false(self, flag):
        """A flag with another value is rejected."""
        driver = merging()
        driver.pipe_input("7", {"id": 7}, {"allow-merge": flag})
        assert [reason for reason, _ in rejected(driver)] == ["bad_header"]


class TestUnreadableNames:
    """A header name that is not UTF-8 has reached us as U+FFFD."""

    @pytest.mark.parametrize("name", [UNREADABLE_NAME, f"trace{UNREADABLE_NAME}", f"command{UNREADABLE_NAME}"])
    @pytest.mark.parametrize("key", ["7", None])
    def test_the_record_is_rejected_with_the_rest_of_its_headers(self, name, key):
        """Which header was meant is unknown: it may be a command. The letter has the others as they were."""
        driver = merging()
        driver.pipe_input(key, {"id": 7}, {"trace": b"\xff", name: "1"})
        assert rejected(driver) == [("bad_header", f"header {name!r} has a name that is not UTF-8")]
        assert driver.pending_output("dlq")[0].headers[:2] == [("trace", b"\xff"), (name, b"1")]

    def test_values_of_unknown_headers_are_any_bytes(self):
        """They travel on unchanged: tracing and schema ids are not text."""
        driver = merging()
        driver.pipe_input("7", {"id": 7}, {"trace": b"\xff\x00"})
        assert ("trace", b"\xff\x00") in (driver.pending_output("delta")[0].headers or [])

    def test_a_letter_is_sent_again_without_it(self):
        """With it the record would be rejected again, and its name is lost in any case."""
        headers = [("a", b"1"), (UNREADABLE_NAME, b"2")]
        assert replay_headers(headers, "t/0/1") == [("a", b"1"), ("replay_of", b"t/0/1")]

    @pytest.mark.parametrize("name", ["a\0b", "\ud800", UNREADABLE_NAME])
    def test_a_publisher_cannot_write_such_a_name(self, name):
        """It is refused at the call, and not at the worker."""
        with pytest.raises(ConfigurationError, match="a name is text without NUL"):
            named_headers({name: "1"})


class TestCorrelationId:
    """A correlation id belongs to the update that carries it (producers.md, rule 7)."""

    def test_an_update_without_one_has_none(self):
        """Updates and deletes carry their own correlation id only, never that of an update before them."""
        driver = merging()
        ids = [None, "Yg==", None, "a/+1", None]
        updates = [("7", {"id": 7}, {"correlation_id": text} if text else None) for text in ids]
        driver.pipe_batch([*updates, ("7", None, None), ("7", {"id": 7}, None)])
        for role in ("sow", "delta"):
            assert [told(record).get("correlation_id") for record in driver.pending_output(role)] == [
                None, "Yg==", None, "a/+1", None, None, None,
            ]  # fmt: skip

    def test_an_expiry_has_none(self):
        """An expiry comes from no update and therefore carries no correlation id."""
        driver = merging(expiration=1)
        driver.pipe_input("7", {"id": 7}, {"correlation_id": "abc="})
        driver.commit()
        driver.advance_time(1000)
        assert told(driver.pending_output("sow")[0]) == {"version": "2", "kind": "expire"}

    def test_a_delete_may_bring_its_own(self):
        """A correlation id on a delete goes onto its records, not that of the deleted record."""
        driver = merging()
        driver.pipe_batch([("7", {"id": 7}, {"correlation_id": "a"}), ("7", None, {"correlation_id": "b"})])
        assert [told(record)["correlation_id"] for record in driver.pending_output("delta")] == ["a", "b"]

    @pytest.mark.parametrize("name", ["correlation_id", "sow_key"])
    @pytest.mark.parametrize("text", ["", "a-b", "a b", b"\xff", "a\n", "x" * 1025])
    def test_only_characters_of_base64_and_not_too_many(self, name, text):
        """A correlation id and an explicit key are 1 to 1,024 characters of Base64."""
        driver = merging(key="explicit")
        driver.pipe_input("7", {"id": 7}, {name: text})
        assert [reason for reason, _ in rejected(driver)] == ["bad_header"]


class TestExplicitKey:
    """`key: explicit`: the publisher gives the key."""

    def test_the_kafka_key_is_the_key(self):
        """On a topic with an explicit key the Kafka key counts, not the body; the delta has no key fields."""
        driver = merging(key="explicit")
        driver.pipe_batch([("7", {"id": 8, "a": 1}, {"sow_key": "7"}), ("7", {"a": 2}, None), ("7", None, None)])
        assert bodies(driver.pending_output("sow")) == [{"id": 8, "a": 1}, {"id": 8, "a": 2}, None]
        assert bodies(driver.pending_output("delta")) == [{"id": 8, "a": 1}, {"a": 2}, {}]
        assert not any("sow_key" in told(record) for record in driver.pending_output("sow"))

    @pytest.mark.parametrize("value", [{"a": 1}, None])
    def test_without_a_kafka_key_the_header_has_it(self, value):
        """The record is sent to the input again under that key, unchanged; a delete too."""
        driver = merging(key="explicit")
        driver.pipe_input("YQ==", {"b": 1})
        driver.pipe_input(None, value, {"sow_key": "YQ==", "trace": "1"})
        [again] = driver.pending_output("publish")
        assert (again.key, again.headers) == (b"YQ==", [("sow_key", b"YQ=="), ("trace", b"1")])
        driver.commit()
        assert bodies(driver.pending_output("sow")) == [value and {"b": 1, "a": 1}]

    def test_without_either_it_is_rejected(self):
        """A record of such a topic without a Kafka key and header `sow_key` is rejected."""
        driver = merging(key="explicit")
        driver.pipe_input(None, {"id": 7})
        assert rejected(driver) == [("missing_key", "no Kafka key, and no header sow_key")]

    @pytest.mark.parametrize("key", ["explicit", ["/id"]])
    @pytest.mark.parametrize("value", [{"id": 7}, None])
    def test_two_different_keys_are_rejected(self, key, value):
        """A header `sow_key` that differs from the Kafka key is rejected, also where key fields make the key."""
        driver = merging(key=key)
        driver.pipe_input("7", value, {"sow_key": "8"})
        assert rejected(driver) == [("key_mismatch", "header sow_key is b'8', but the key is b'7'")]

    def test_key_fields_and_header_must_agree_without_a_kafka_key_too(self):
        """The record is rejected and sent again under neither key."""
        driver = merging()
        driver.pipe_input(None, {"id": 7}, {"sow_key": "8"})
        assert [reason for reason, _ in rejected(driver)] == ["key_mismatch"]
        assert driver.pending_output("publish") == []


class TestSource:
    """`source_header: true`."""

    def test_outputs_name_their_input_record(self):
        """SOW, delta and deletes have topic, partition and offset, and the state the offset; an expiry has none."""
        driver = merging(source_header=True, expiration=1)
        driver.pipe_batch([("7", {"id": 7}, None), ("7", None, None), ("8", {"id": 8}, None)])
        assert driver.state.get_many([b"8"]) == {b"8": Stored(5, b'{"id":8}', driver.now_ms + 1000, 2)}
        driver.advance_time(1000)
        for role in ("sow", "delta"):
            assert [told(record).get("source") for record in driver.pending_output(role)] == [
                "orders.publish/0/0", "orders.publish/0/1", "orders.publish/0/2", None,
            ]  # fmt: skip

    def test_by_default_they_do_not(self):
        """A header of a publisher with the name of one of ours does not travel on."""
        driver = merging()
        driver.pipe_input("7", {"id": 7}, {"source": "mine"})
        assert "source" not in told(driver.pending_output("sow")[0])


def test_of_a_header_that_occurs_twice_the_last_counts():
    """An earlier header of the same name is not even checked."""
    driver = merging()
    driver.pipe_input("7", {"id": 7}, [("expiration", b"x"), ("expiration", b"5"), ("remove", b"x"), ("remove", b"[]")])
    assert rejected(driver) == []
    assert told(driver.pending_output("sow")[0])["expires_at"] == str(driver.now_ms + 5000)


class TestHeadersThatAreTooLarge:
    """Headers that Kafka would refuse on an output are rejected: they would stop the worker at this record for ever."""

    @pytest.mark.parametrize("value", [{"id": 7}, None])
    def test_headers_that_travel_on_have_a_limit(self, value):
        """All headers that travel on may have a megabyte with their names: with a large record more would not fit."""
        driver = merging()
        driver.pipe_input("7", {"id": 7})
        driver.pipe_input("7", value, [("a", b"x" * (PASSED_BYTES_MAX - 2)), ("b", None)])
        assert rejected(driver) == []
        driver.pipe_input("7", value, [("a", b"x" * (PASSED_BYTES_MAX - 2)), ("bb", None)])
        assert rejected(driver) == [
            ("too_large", f"its headers that travel on have more than {PASSED_BYTES_MAX} bytes")
        ]

    def test_the_list_of_what_is_gone(self):
        """The removal of five thousand members below a long name, which each path repeats, is too large."""
        driver = merging()
        name = "x" * 3000
        driver.pipe_input("7", {"id": 7, name: {str(n): 1 for n in range(5000)}})
        driver.pipe_input("7", {"id": 7, name: {}}, {"command": "publish"})
        [(reason, detail)] = rejected(driver)
        assert reason == "too_large"
        assert detail.startswith("removed: the paths of what is gone, below '/xxx")
        driver.pipe_input("7", {"id": 7}, {"command": "publish"})
        assert bodies(driver.pending_output("sow"))[1:] == [{"id": 7}]

    @pytest.mark.parametrize("publish", [True, False], ids=["publish", "nulls"])
    def test_the_list_of_what_is_gone_here_and_there(self, publish):
        """So is that of one member in each of five thousand objects, by a publish or by nulls that remove."""
        driver = merging(null_policy="remove")
        name = "x" * 3000
        driver.pipe_input("7", {"id": 7, name: {str(n): {"a": 1} for n in range(5000)}})
        less = {str(n): {} if publish else {"a": None} for n in range(5000)}
        driver.pipe_input("7", {"id": 7, name: less}, {"command": "publish" if publish else "delta_publish"})
        assert [reason for reason, _ in rejected(driver)] == ["too_large"]

    def test_the_header_itself(self):
        """Many short paths are too large together, as JSON may need six bytes for a character."""
        driver = merging(max_record_bytes=10_000_000)
        driver.pipe_input("7", {"id": 7, **{f"{'é' * 200}{n}": 1 for n in range(4000)}})
        driver.pipe_input("7", {"id": 7}, {"command": "publish"})
        [(reason, detail)] = rejected(driver)
        assert reason == "too_large"
        assert detail.startswith("header removed: 48")
