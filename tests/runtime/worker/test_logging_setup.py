import json
import subprocess
import sys

CODE = """
import logging, structlog
from processor.runtime.worker.logging_setup import set_up_logging
set_up_logging({arguments})
log = structlog.stdlib.get_logger("sowstream.worker")
log.info("settings", kafka={{"sasl.password": "hunter2", "bootstrap.servers": "here:9092"}}, token="hunter2")
log.debug("details")
logging.getLogger("sowstream.librdkafka").warning("broker %s is down", 7)
logging.getLogger("somebody.else").info("chatter")
try:
    record = "a record's data"
    1 / 0
except ZeroDivisionError:
    log.exception("oops")
"""


def logged(arguments: str = "") -> list[dict[str, object]]:
    """Return the log lines of a process without a terminal."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(arguments=arguments)],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_every_line_is_json_off_a_terminal():
    """Lines of all loggers, errors included, are one JSON object each on stderr."""
    settings, broker, oops = logged()
    assert settings["event"] == "settings"
    assert (broker["event"], broker["level"], broker["logger"]) == (
        "broker 7 is down",
        "warning",
        "sowstream.librdkafka",
    )
    assert "ZeroDivisionError" in json.dumps(oops)
    assert str(oops["timestamp"]).endswith("Z")


def test_a_traceback_has_no_values_of_variables():
    """The variables of a failing function hold records and passwords, so the trace of an error leaves them out."""
    *_, oops = logged()
    assert "record's data" not in json.dumps(oops)


def test_secrets_are_stars():
    """Values of secret settings are replaced by stars, also inside a section."""
    (settings, *_) = logged()
    assert settings["kafka"] == {"sasl.password": "****", "bootstrap.servers": "here:9092"}
    assert settings["token"] == "****"


def test_verbose_adds_our_details_only():
    """`verbose` adds Sowstream's debug lines, not those of other libraries."""
    assert [line["event"] for line in logged("verbose=True")] == ["settings", "details", "broker 7 is down", "oops"]
