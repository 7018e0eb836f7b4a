from __future__ import annotations

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.foundation.settings import topic_settings
from spark_integration.read.table_part import key_texts, partitions_with


def test_keys_have_the_text_of_workers() -> None:
    """A key is a value, or a list with one for each key field; the texts are those of the workers, once each."""
    keys = ["7", 7, True, ["a"], ("ø", 1), ['"', False]]
    assert key_texts(keys) == ["7", "true", "a", '["ø","1"]', '["\\"","false"]']


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("7", r"keys='7' is one text; give a list of keys: keys=\['7'\]"),
        ([], "keys names no key"),
        ([1.5], "keys has 1.5; a key is a string, a whole number or a boolean"),
        ([None], "keys has None"),
        ([["a", None]], "keys has \\['a', None\\]"),
    ],
)
def test_keys_that_no_record_has_are_refused(keys, said) -> None:
    """A value that is no key, a single text and an empty list are errors."""
    with pytest.raises(ConfigurationError, match=said):
        key_texts(keys)


def test_keys_of_another_format_are_refused() -> None:
    """Keys that are no texts on the topic cannot be looked up by text."""
    with pytest.raises(ConfigurationError, match="has key_format 'json'"):
        partitions_with(["7"], 4, topic_settings("orders", {"key": ["/id"], "key_format": "json"}))
