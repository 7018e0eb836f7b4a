"""Codecs are found by entry point: ours like anybody's."""

import sys

import pytest

from processor.codec import CodecOptions, codec_of, load_codec
from processor.codec.json import JsonCodec
from processor.config import Config
from processor.errors import ConfigurationError


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution that brings codecs, on the import path as if installed."""
    info = tmp_path / "thirdparty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sowstream.codecs]\nshout = thirdparty_codec:Shout\nbroken = thirdparty_codec:Missing\n"
        "jason = processor.codec.json:JsonCodec\n"
    )
    (tmp_path / "thirdparty_codec.py").write_text(
        "class Shout:\n"
        "    can_delta = False\n"
        "    def __init__(self, options):\n        self.mark = options.separator\n"
        "    def encode(self, value):\n        return (value.upper() + self.mark).encode()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("thirdparty_codec", None)


def test_an_installed_codec_is_found_and_gets_its_options(installed):
    """Whoever declares the entry point has a message type; ours comes in the same way."""
    assert load_codec("shout", CodecOptions(separator="?")).encode("hey") == b"HEY?"
    codec = load_codec("jason", CodecOptions(max_depth=3))
    assert isinstance(codec, JsonCodec)
    assert codec.max_depth == 3


def test_an_unknown_message_type_is_a_configuration_error_with_a_suggestion(installed):
    """The message names the nearest one that there is."""
    with pytest.raises(ConfigurationError, match="there is no message type 'jasom'; did you mean 'jason'"):
        load_codec("jasom")


def test_what_is_wrong_with_a_message_type_is_told_with_its_topic():
    """Of many topics, the one to be mended is named, once."""
    topics = {"a": {"message_type": "composite-local"}, "b": {"message_type": "jsom"}, "c": {"message_type": "avro"}}
    config = Config.model_validate({"topics": topics})
    for name in topics:
        with pytest.raises(ConfigurationError) as raised:
            codec_of(config, name)
        assert str(raised.value).count(f"topic '{name}'") == 1


def test_a_codec_that_cannot_be_loaded_is_a_configuration_error(installed):
    """It says which object was missing, and the cause follows."""
    with pytest.raises(ConfigurationError, match="'broken': thirdparty_codec:Missing cannot be loaded"):
        load_codec("broken")
