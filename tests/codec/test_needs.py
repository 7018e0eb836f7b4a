"""Message types whose packages are missing are reported, and the others work."""

import subprocess
import sys

import pytest


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
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert output.startswith(f"message type '{name}' needs a package that is not installed (")
    assert output.endswith("install it: pip install 'sowstream[formats]'\n")
