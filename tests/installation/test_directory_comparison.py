"""Settings compared with the directory: the differences that stop a worker, and their messages."""

import pytest

from processor.config import Config
from processor.installation.directory_comparison import contradictions, differences, revise
from processor.installation.topic_directory import DirectoryEntries
from processor.wire.topic_description import describe


def config(**topic):
    """Settings of one topic with a conflated copy."""
    application = topic.pop("application_id", "shop")
    underlying = topic.pop("underlying", "orders")
    return Config.model_validate(
        {
            "application_id": application,
            "topics": {"orders": topic, "others": {}},
            "conflated": {"slow": {"underlying": underlying}},
        }
    )


@pytest.mark.parametrize(
    ("change", "field", "severity", "ours", "theirs"),
    [
        ({"key": ["/sku"]}, "key", "refuse", "/sku", "/id"),
        ({"key": "explicit"}, "key", "refuse", "explicit", "/id"),
        ({"message_type": "msgpack"}, "message_type", "refuse", "msgpack", "json"),
        ({"partitions": 7}, "partitions", "refuse", "7", "4"),
        ({"separator": "|"}, "separator", "refuse", "|", r"'\x01'"),
        ({"parts": ["json"]}, "parts", "refuse", "json", "none"),
        ({"key_format": "json"}, "key_format", "refuse", "json", "text"),
        ({"application_id": "bank"}, "application_id", "warn", "bank", "shop"),
        ({"default_command": "publish"}, "default_command", "warn", "publish", "delta_publish"),
        ({"foreign_partition": "accept"}, "foreign_partition", "warn", "accept", "move"),
    ],
)
def test_a_contradiction_has_both_values(change, field, severity, ours, theirs):
    """A difference that readers would misunderstand is refused, any other is a warning; each has both values."""
    entries = DirectoryEntries(describe(config()), {})
    (problem,) = contradictions(describe(config(**change)), entries, ["orders"])
    assert (problem.severity, problem.topic) == (severity, "orders")
    assert problem.what.startswith(f"{field} is {ours} in the settings and {theirs} in the topic directory")
    assert "sowstream topics apply" in problem.to_do


def test_what_a_copy_is_derived_from_is_compared():
    """A conflated topic of the same name over another topic is refused."""
    entries = DirectoryEntries(describe(config()), {})
    (problem,) = contradictions(describe(config(underlying="others")), entries, ["slow"])
    assert (problem.severity, problem.what[:61]) == (
        "refuse",
        "derived_from is others in the settings and orders in the topic directory, which readers go by"[:61],
    )


def test_only_the_topics_asked_for_are_compared():
    """Only the topics of a worker are compared: others, and topics without a description, do not stop it."""
    entries = DirectoryEntries({"orders": describe(config())["orders"]}, {})
    assert contradictions(describe(config(key=["/sku"])), entries, ["slow", "others"]) == []


def test_long_values_are_cut_to_where_they_differ():
    """Two schemas are shown as the parts around their first difference."""
    before, after = ("".join(f'{{"f{n}":"{kind}"}}' for n in range(99)) for kind in ("long", "long"))
    after = after.replace('"f50":"long"', '"f50":"string"')
    first, second = (
        describe(Config.model_validate({"topics": {"q": {"message_type": "avro", "schema": {"text": text}}}}))["q"]
        for text in (before, after)
    )
    (difference,) = differences(second, first)
    ours, theirs = difference.shown()
    assert '"f50":"string' in ours
    assert '"f50":"long' in theirs
    assert max(len(ours), len(theirs)) < 70


def test_two_files_with_one_meaning_are_one_schema():
    """White space in an Avro schema is no difference."""
    texts = ('{"type":"record"}', '{\n  "type": "record"\n}')
    first, second = (
        describe(Config.model_validate({"topics": {"q": {"message_type": "avro", "schema": {"text": text}}}}))["q"]
        for text in texts
    )
    assert differences(first, second) == []


def test_only_what_changed_is_written():
    """The first apply writes all descriptions, a second none, and a changed topic only its own, with both values."""
    before, after = config(), config(key=["/sku"])
    entries = DirectoryEntries(describe(before), {})
    assert revise(before, describe(before), None).writes == describe(before)
    assert revise(before, describe(before), entries) == ({}, [])
    revision = revise(after, describe(after), entries)
    assert set(revision.writes) == {"orders", "slow"}
    assert "orders: description changed: key was /id, is /sku." in revision.lines


def test_what_the_settings_no_longer_have_is_left_unless_it_is_pruned():
    """Only descriptions of the same application are ever removed, and only on request."""
    described = describe(config())
    described["foreign"] = described["orders"].model_copy(update={"application_id": "bank"})
    fewer = Config.model_validate({"application_id": "shop", "topics": {"orders": {}}})
    entries = DirectoryEntries(described, {})
    assert revise(fewer, describe(fewer), entries).writes == {}
    assert revise(fewer, describe(fewer), entries, prune=True).writes == {"others": None, "slow": None}


def test_a_topic_that_is_not_as_configured_keeps_its_description():
    """A topic that differs from the settings keeps its description, which readers go on using."""
    after = config(partitions=9)
    revision = revise(after, describe(after), DirectoryEntries(describe(config()), {}), kept={"orders", "slow"})
    assert revision.writes == {}
    assert "orders: not described" in revision.lines[0]


def test_a_description_of_a_newer_version_is_not_overwritten():
    """A description of a newer version is not overwritten; one that is merely broken is."""
    ours = config()
    entries = DirectoryEntries({}, {"orders": "has format 2", "others": "is not JSON"}, frozenset(("orders",)))
    revision = revise(ours, describe(ours), entries)
    assert set(revision.writes) == {"others", "slow"}
