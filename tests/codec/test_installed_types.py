"""Codecs are loaded by entry point, the built-in ones and those of others, and a missing package is reported."""

import subprocess
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


def test_an_installed_codec_is_loaded_with_its_options(installed):
    """A codec of another package is loaded by its entry point and gets its options."""
    assert load_codec("shout", CodecOptions(separator="?")).encode("hey") == b"HEY?"
    codec = load_codec("jason", CodecOptions(max_depth=3))
    assert isinstance(codec, JsonCodec)
    assert codec.max_depth == 3


def test_an_unknown_message_type_is_a_configuration_error_with_a_suggestion(installed):
    """An unknown message type is a configuration error that names the nearest installed one."""
    with pytest.raises(ConfigurationError, match="there is no message type 'jasom'; did you mean 'jason'"):
        load_codec("jasom")


def test_an_error_of_a_message_type_names_its_topic():
    """An error of a message type names its topic, once."""
    topics = {"a": {"message_type": "composite-local"}, "b": {"message_type": "jsom"}, "c": {"message_type": "avro"}}
    config = Config.model_validate({"topics": topics})
    for name in topics:
        with pytest.raises(ConfigurationError) as raised:
            codec_of(config, name)
        assert str(raised.value).count(f"topic '{name}'") == 1


def test_a_codec_that_cannot_be_loaded_is_a_configuration_error(installed):
    """A codec that cannot be imported is a configuration error with the missing object."""
    with pytest.raises(ConfigurationError, match="'broken': thirdparty_codec:Missing cannot be loaded"):
        load_codec("broken")


@pytest.mark.parametrize(
    ("name", "package"), [("msgpack", "msgpack"), ("bson", "bson"), ("protobuf", "google.protobuf")]
)
def test_a_missing_package_is_a_configuration_error_with_its_install_command(name, package):
    """A missing package is a configuration error with the command that installs it; other message types still work."""
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from processor.codec import load_codec\n"
        "from processor.errors import ConfigurationError\n"
        "load_codec('json'); load_codec('nvfix'); load_codec('xml')\n"
        f"try: load_codec({name!r})\n"
        "except ConfigurationError as error: print(error)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=150
    ).stdout
    assert output.startswith(f"message type '{name}' needs a package that is not installed (")
    assert output.endswith("install it: pip install 'sowstream[formats]'\n")
