import json
import re
import signal
import subprocess
import time

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from processor.cli.main import run
from tests.cli.conftest import Cli


def test_help_answers_at_once(offline: Cli):
    """`--help` needs no settings, no broker, and none of the slow modules."""
    heavy = ("confluent_kafka", "rocksdict", "pydantic", "orjson", "structlog")
    code = (
        "import sys; from processor.cli.main import run; assert run(['--help']) == 0; "
        f"assert not [name for name in {heavy!r} if name in sys.modules], sys.modules.keys()"
    )
    done = subprocess.run([Cli.command()[0], "-c", code], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert "subscribe" in done.stdout


@pytest.mark.parametrize(
    ("command", "usage"),
    [("worker", "[TOPIC]..."), ("check", "[FILE]"), ("publish", "{TOPIC} [FILE|-]"), ("status", "[TOPIC]...")],
)
def test_usage_has_one_pair_of_brackets(offline: Cli, command: str, usage: str):
    """An argument that may be left out is in one pair of brackets."""
    assert f"{command} [OPTIONS] {usage} " in re.sub(r"\s+", " ", offline(command, "--help").stdout)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["publish", "orders", "--header", "x=\udcff"], "--header x"),
        (["publish", "orders", "--header", "command_id=\udcff"], "--header command_id"),
        (["publish", "orders", "--header", "client=\udcff", "--header", "sequence=1"], "--header client"),
        (["publish", "orders", "--key", "\udcff"], "--key"),
        (["publish", "\udcff"], ""),
        (["get", "orders", "\udcff"], ""),
        (["sow", "orders", "--filter", "/a = '\udcff'"], ""),
        (["delete", "orders", "--filter", "/a = '\udcff'"], ""),
        (["mark", "orders", "\udcff"], ""),
        (["topics", "describe", "\udcff"], ""),
    ],
    ids=" ".join,
)
def test_an_argument_that_is_not_utf_8_is_wrong_usage(offline: Cli, arguments: list[str], place: str):
    """Such an argument ends a command with exit code 2 and one line that shows it, and with no traceback."""
    done = offline(*arguments, given='{"id": 1}\n')
    assert "Traceback" not in done.stderr
    assert done.returncode in ((2,) if place else (1, 2)), done.stderr
    if place:
        [line] = done.stderr.splitlines()
        assert line.startswith(f"sowstream: {place}: '\\udcff' is not UTF-8 text") or place != "--header x"


@pytest.mark.parametrize(
    ("arguments", "default"),
    [
        (["sow"], "./sowstream.yaml"),
        (["worker"], "all"),
        (["conflate"], "all"),
        (["demo"], "one of its own"),
        (["demo"], "until Ctrl-C, no check"),
    ],
)
def test_help_shows_the_defaults(offline: Cli, arguments: list[str], default: str):
    """The help shows each default, also one that is computed."""
    told = re.sub(r"[\s│]+", " ", offline(*arguments, "--help").stdout)
    assert f"[default: {default}]" in told


@pytest.mark.parametrize("arguments", [[], ["queue"], ["subscribe"]])
def test_help_has_no_type_behind_a_flag(offline: Cli, arguments: list[str]):
    """A flag takes no value, so its help names none; an option has its own."""
    told = offline(*arguments, "--help").stdout
    assert "--help" in told
    assert "bool" not in told
    assert ("FILTER" in told) == (arguments == ["subscribe"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["up"], "; a worker for"), (["topics", "check"], "the one partition that")],
)
def test_help_breaks_lines_by_the_width_of_the_terminal(offline: Cli, arguments: list[str], words: str):
    """Words on both sides of a line break of the source stand on one line of the help."""
    assert words in offline(*arguments, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sow"], "TOPIC"),
        (["sow", "oders"], "did you mean 'orders'"),
        (["sow", "orders", "-c", "missing.yaml"], "No such file"),
        (["publish", "orders", "missing.jsonl"], "No such file"),
        (["publish", "orders", "--header", "x"], "K=V"),
        (["publish", "orders", "--header", "version=1"], "Sowstream's own"),
        (["publish", "orders", "--header", "ack_type=persisted"], "--ack"),
        (["publish", "orders", "--header", "expiration=soon"], "expiration is a number"),
        (["publish", "orders", "--header", "client=x"], "client and sequence go together"),
        (["publish", "orders", "--header", "sequence=1"], "client and sequence go together"),
        (["publish", "orders", "--ack", "persistent"], "did you mean 'persisted'"),
        (["publish", "orders", "--ack", "stats"], "'stats' is not supported"),
        (["publish", "slow"], "publish to 'orders'"),
        (["publish", "slower", "--ack", "persisted"], "a worker makes 'slower' of 'slow'; publish to 'orders'"),
        (["delete", "slow", "--key", "1"], "a worker makes 'slow' of 'orders'; publish to 'orders' instead"),
        (["delete", "orders"], "--key"),
        (["subscribe", "orders", "--no-empties"], "for delta subscriptions"),
        (["subscribe", "orders", "--count", "0"], "count"),
        (["worker", "slow"], "sowstream conflate slow"),
        (["conflate", "orders"], "sowstream worker orders"),
        (["worker", "ordrs"], "did you mean 'orders'"),
        (["view", "stats"], "there is no view 'stats'"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_2(offline: Cli, arguments: list[str], said: str):
    """Errors that another command line or other settings can fix exit with 2, with a message on stderr only."""
    done = offline(*arguments, given='{"id":1}\n')
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_kafka_properties_are_2(offline: Cli):
    """A property unknown to librdkafka is named; its value, which may be a secret, is not."""
    offline.settings.write_text("kafka: {sasl.passwort: hunter2}\ntopics: {orders: {}}\n")
    for command in (["sow", "orders"], ["topics", "check"], ["delete", "orders", "--key", "1"]):
        done = offline(*command)
        assert done.returncode == 2
        assert "sasl.passwort" in done.stderr
        assert "hunter2" not in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("merge_rules: {/qty: sun}", "did you mean 'sum'"),
        ("merge_rules: {/id: sum}", "the key field /id overlap"),
        ("sequence_groups: [{by: ts, fields: [/a]}]", "does not start with /"),
        ("preprocess: [upper]", "there is no preprocessor 'upper'"),
        ("enrich: [upper]", "there is no enricher 'upper'"),
        ("key: [/a~]", "~ stands alone"),
        ("message_type: binary", "set key: explicit"),
        ("message_type: protobuf", "set key: explicit"),
    ],
)
def test_a_topic_that_no_partition_could_begin_with_is_2(offline: Cli, setting: str, said: str):
    """Such a name is rejected before any request to Kafka, by the worker and by `topics apply`."""
    offline.settings.write_text(
        f"kafka: {{bootstrap.servers: '127.0.0.1:1'}}\ntopics: {{fine: {{}}, wrong: {{{setting}}}}}\n"
    )
    for command in (["worker"], ["topics", "apply"], ["topics", "check"]):
        done = offline(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert "wrong: " in done.stderr


def test_rules_for_a_message_type_without_deltas_are_2(offline: Cli):
    """The worker creates the message type before it starts anything."""
    topic = "{message_type: binary, key: explicit, merge_rules: {/qty: sum}}"
    offline.settings.write_text(f"kafka: {{bootstrap.servers: '127.0.0.1:1'}}\ntopics: {{wrong: {topic}}}\n")
    done = offline("worker")
    assert done.returncode == 2
    assert "take out its merge_rules" in done.stderr


def test_the_doctor_distinguishes_settings_from_kafka(offline: Cli):
    """A wrong property has the advice to correct the settings; a missing broker, to start it."""
    silent = offline("doctor")
    offline.settings.write_text("kafka: {sasl.passwort: x}\ntopics: {orders: {}}\n")
    wrong = offline("doctor")
    assert (silent.returncode, wrong.returncode) == (1, 1)
    assert "sowstream broker start" in silent.stdout
    assert "correct the section kafka of the settings" in wrong.stdout
    assert "sowstream broker start" not in wrong.stdout


@pytest.mark.long
def test_no_broker_is_1(offline: Cli):
    """A Kafka that does not answer is reported with advice and exit code 1."""
    done = offline("topics", "check")
    assert done.returncode == 1
    assert "127.0.0.1:1: nothing listens on this port" in done.stderr
    assert "sowstream broker start" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["status"], ["queue", "status", "jobs"], ["view", "rebuild", "--yes", "states"], ["resume", "orders"]]
)
def test_the_wait_for_kafka_is_a_setting(offline: Cli, arguments: list[str]):
    """Each command waits for an absent Kafka as long as `connect_timeout_s` says."""
    offline.settings.write_text(
        "{kafka: {bootstrap.servers: '127.0.0.1:1'}, connect_timeout_s: 500ms, topics: {orders: {}}, "
        "queues: {jobs: {underlying: orders}}, "
        "views: {states: {underlying: orders, group_by: [/s], fields: {/n: COUNT(*)}}}}"
    )
    done = offline(*arguments)
    assert (done.returncode, "nothing listens on this port" in done.stderr) == (1, True), done.stderr
    assert not re.search("up to 1[05] s", done.stderr)


@pytest.mark.broker
def test_a_processor_without_acks_says_so(cli: Cli, unique: str):
    """An ack of a topic that has none is refused with the reason: `topics apply` would not create it."""
    tree = yaml.safe_load(cli.settings.read_text())
    new = NewTopic(f"{unique}_own.publish", 4, 1)
    admin = AdminClient(tree["kafka"])
    admin.create_topics([new])[new.topic].result(120)
    cli.settings.write_text(yaml.safe_dump(tree | {"processors": {f"{unique}_own": {"use": "of_others"}}}))
    done = cli("publish", f"{unique}_own", "--key", "a", "--ack", "persisted", given="{}\n")
    assert (done.returncode, "which sends no acks" in done.stderr) == (2, True), done.stderr


def test_errors_are_mapped_in_one_place(capsys: pytest.CaptureFixture[str]):
    """Inside a process, `run` returns the exit code instead of ending it."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.count(".") == 2
    assert run(["nonsense"]) == 2


_ENDS_BADLY = """
import builtins, os, signal
from processor.cli import main

class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGSEGV)

builtins.late = Late()
if {fails}:
    main.run = lambda: 1 / 0
main.main()
"""


@pytest.mark.parametrize(("fails", "code"), [(False, 0), (True, 1)])
def test_the_end_of_the_interpreter_does_not_change_the_exit_code(fails: bool, code: int):
    """A fault of a library in the process's last moments neither hides success nor an error that nothing caught."""
    command = [Cli.command()[0], "-c", _ENDS_BADLY.format(fails=fails), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, "ZeroDivisionError" in done.stderr) == (code, fails)
    assert done.stdout.count(".") == (0 if fails else 2)


@pytest.mark.broker
def test_ctrl_c_is_how_a_subscription_ends(cli: Cli, unique: str):
    """Ctrl-C on `subscribe` exits with 0, and earlier messages were printed at once."""
    assert cli("topics", "apply").returncode == 0
    running = cli.start("subscribe", unique, "--sow")
    assert running.stdout is not None
    assert json.loads(running.stdout.readline())["command"] == "group_begin"
    assert json.loads(running.stdout.readline())["command"] == "group_end"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=150)
    assert (running.returncode, out) == (0, "")
    assert "Traceback" not in err


@pytest.mark.broker
def test_a_reader_that_has_enough_is_a_quiet_end(cli: Cli, unique: str):
    """A command whose reader closes the pipe ends without a message."""
    assert cli("topics", "apply").returncode == 0
    running = cli.start("subscribe", unique, "--sow")
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.readline()
    running.stdout.readline()
    running.stdout.close()
    deadline = time.monotonic() + 120
    with running.stderr:
        number = 0
        while running.poll() is None and time.monotonic() < deadline:
            _write_sow(cli, unique, number)
            number += 1
        assert running.wait(60) == 0
        assert running.stderr.read() == ""


def _write_sow(cli: Cli, name: str, number: int) -> None:
    """Write a record to the SOW topic, as a worker would."""
    from processor.config import load
    from processor.kafka.clients.publisher import Publisher

    publisher = Publisher(load(cli.settings).kafka)
    publisher.send(f"{name}.sow", b"%d" % number, b'{"id":1}', [("version", b"1")])
    publisher.flush(120)
