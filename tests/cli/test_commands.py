"""Commands on a real Kafka: topics, publishing, queries, subscriptions, and workers of several processes."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from processor.config import load
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.publisher import Publisher
from processor.record import Record
from processor.topics.family import TopicSpec
from tests.cli.conftest import Cli
from tests.waiting import with_limits

pytestmark = pytest.mark.broker


def lines(text: str) -> list[dict[str, object]]:
    """The parsed JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def write(cli: Cli, topic: str, key: str, value: dict[str, object] | None, **headers: str) -> None:
    """Write a record to an output topic, as a worker would."""
    publisher = Publisher(load(cli.settings).kafka)
    data = None if value is None else json.dumps(value).encode()
    publisher.send(topic, key.encode(), data, [(name, text.encode()) for name, text in headers.items()])
    publisher.flush(120)


def published(cli: Cli, topic: str) -> list[Record]:
    """All records on an input topic of two partitions."""
    config = load(cli.settings)
    from processor.client.feeds.snapshot_boundary import SnapshotBoundary

    cut = SnapshotBoundary(
        config.kafka, Admin(config.kafka), topic=f"{topic}.publish", partitions=range(2), group="test"
    )
    found = [record for batch in cut.before() for record in batch]
    cut.close()
    return found


def test_topics_are_created_once_and_checked(cli: Cli, unique: str):
    """`apply` creates missing topics and prints them; `check` finds no problem afterwards, and gives advice before."""
    before = cli("topics", "check")
    assert before.returncode == 1
    assert f"refuse\t{unique}.sow\tdoes not exist\tsowstream topics apply\n" in before.stdout
    first, second, after = cli("topics", "apply"), cli("topics", "apply"), cli("topics", "check")
    assert f"{unique}_slow.sow" in first.stdout.splitlines()
    assert (first.returncode, second.returncode, after.returncode) == (0, 0, 0)
    assert second.stdout == after.stdout == ""


def test_a_topic_with_wrong_settings_is_reported_and_unchanged(cli: Cli, unique: str):
    """`apply` does not change existing topics: it prints the problem with advice, and exits with 1."""
    wrong = TopicSpec(f"{unique}.publish", "publish", 1, {"cleanup.policy": "compact"})
    Admin(load(cli.settings).kafka).create([wrong])
    done = cli("topics", "apply")
    assert done.returncode == 1
    assert "has 1 partition where" in done.stdout
    assert "min.compaction.lag.ms=604800000" in done.stdout
    assert Admin(load(cli.settings).kafka).cluster().topics[wrong.name] == 1


def test_bad_lines_are_reported_and_the_others_sent(cli: Cli, unique: str):
    """Each rejected line is reported with its number, the others are sent, and the exit code is 1."""
    cli("topics", "apply")
    given = '{"id":1,"n":1}\nnot JSON\n\n{"n":1}\n[1]\n{"id":2}\n'
    done = cli("publish", unique, given=given)
    assert (done.returncode, done.stdout) == (1, "")
    told = done.stderr.splitlines()
    assert [line.split(":")[0] for line in told[:-1]] == ["line 2", "line 4", "line 5"]
    assert told[-1] == f"2 records sent to {unique}, 3 lines refused."


def test_a_line_with_a_key_is_checked_and_sent_unchanged(cli: Cli, unique: str):
    """With `--key`, a line that is no JSON is reported and left out, and the others are sent byte for byte."""
    cli("topics", "apply")
    done = cli("publish", unique, "--key", "k", given='{"n": 1}\n{"n": 1, not json\n')
    assert done.returncode == 1
    assert done.stderr.startswith("line 2: not sent: undecodable")
    assert [record.value for record in published(cli, unique)] == [b'{"n": 1}']


def test_lines_of_any_file_are_whole_messages(cli: Cli, unique: str, tmp_path: Path):
    """A byte order mark is skipped, U+2028, U+2029 and U+0085 end no line, and a file in UTF-16 is refused."""
    texts = ['{"id":1}', '{"id":2,"a":"x\u2028y\u2029z\u0085"}', '{"id":3}']
    file, other = tmp_path / "in.jsonl", tmp_path / "utf16.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(texts).encode())
    other.write_bytes("\n".join(texts).encode("utf-16"))
    cli("topics", "apply")
    done, refused = cli("publish", unique, str(file)), cli("publish", unique, str(other))
    assert (done.returncode, refused.returncode) == (0, 2)
    assert "it is in UTF-16" in refused.stderr
    assert sorted((record.value or b"").decode() for record in published(cli, unique)) == texts


def test_published_lines_are_on_the_input_topic(cli: Cli, unique: str, tmp_path: Path):
    """Lines of a file, another command than the default, headers, a key and a deletion arrive as records."""
    cli("topics", "apply")
    file = tmp_path / "orders.jsonl"
    file.write_text('{"id":1}\n{"id":2}\n')
    sent = cli("publish", unique, str(file), "--command", "publish", "--header", "trace=a=b")
    keyed = cli("publish", unique, "-", "--key", "k", given='{"n":1}')
    deleted = cli("delete", unique, "--key", "1", "--no-wait")
    assert [done.returncode for done in (sent, keyed, deleted)] == [0, 0, 0]
    config = load(cli.settings)
    from processor.client.feeds.snapshot_boundary import SnapshotBoundary

    cut = SnapshotBoundary(
        config.kafka, Admin(config.kafka), topic=f"{unique}.publish", partitions=range(2), group="test"
    )
    found = sorted(
        (record.key, record.value, record.headers) for batch in cut.before() for record in batch if record.value
    )
    cut.close()
    headers = [("trace", b"a=b"), ("command", b"publish")]
    assert found == [(b"1", b'{"id":1}', headers), (b"2", b'{"id":2}', headers), (b"k", b'{"n":1}', None)]


def test_lines_are_json_on_every_topic(cli: Cli, unique: str):
    """On a topic of another message type a line is a JSON value, encoded as that type; headers are checked."""
    tree = yaml.safe_load(cli.settings.read_text())
    tree["topics"][unique]["message_type"] = "msgpack"
    cli.settings.write_text(yaml.safe_dump(tree))
    cli("topics", "apply")
    headers = ("--header", "expiration=5", "--header", "client=feed", "--header", "sequence=3")
    done = cli("publish", unique, *headers, given='{"id":1,"n":[null,1.5]}\nnot JSON\n')
    assert done.returncode == 1
    assert done.stderr.startswith("line 2: not sent: undecodable")
    config = load(cli.settings)
    from processor.client.feeds.snapshot_boundary import SnapshotBoundary
    from processor.codec import codec_of

    cut = SnapshotBoundary(
        config.kafka, Admin(config.kafka), topic=f"{unique}.publish", partitions=range(2), group="test"
    )
    ((found,),) = cut.before()
    cut.close()
    assert found.key == b"1"
    assert codec_of(config, unique).decode(found.value or b"") == {"id": 1, "n": [None, 1.5]}
    assert found.headers == [("expiration", b"5"), ("client", b"feed"), ("sequence", b"3")]


def test_each_line_has_a_number_of_its_own(cli: Cli, unique: str):
    """`sequence` is the number of the first line, and later lines count on: no line is dropped as a duplicate."""
    cli("topics", "apply")
    headers = ("--header", "client=feed", "--header", "sequence=3", "--key", "k")
    assert cli("publish", unique, *headers, given='{"n":1}\n\n{"n":2}\n').returncode == 0
    sent = published(cli, unique)
    assert [dict(record.headers or ())["sequence"] for record in sent] == [b"3", b"5"]


def test_a_line_of_bytes_is_base64(cli: Cli, unique: str):
    """On a topic of bytes a line is the Base64 that `sow` prints; invalid Base64 is reported and skipped."""
    tree = yaml.safe_load(cli.settings.read_text())
    tree["topics"][unique] |= {"message_type": "binary", "key": "explicit"}
    cli.settings.write_text(yaml.safe_dump(tree))
    cli("topics", "apply")
    done = cli("publish", unique, "--key", "k", given='"AP9h"\n"a!"\n{"n":1}\n')
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stderr.splitlines()[:-1]] == ["line 2", "line 3"]
    assert "not Base64" in done.stderr
    assert [record.value for record in published(cli, unique)] == [b"\x00\xffa"]


def test_the_state_of_the_world_is_printed(cli: Cli, unique: str):
    """`sow` prints a group of messages, `get` the bare record, or an error with exit code 1 if there is none."""
    cli("topics", "apply")
    write(cli, f"{unique}.sow", "1", {"id": 1, "n": 2}, version="2")
    printed = lines(cli("sow", unique, "--timestamp").stdout)
    assert [message["command"] for message in printed] == ["group_begin", "sow", "group_end"]
    assert printed[1]["data"] == {"id": 1, "n": 2}
    assert str(printed[1]["timestamp"]).endswith("Z")
    assert cli("get", unique, "1").stdout == '{"id":1,"n":2}\n'
    missing = cli("get", unique, "nobody")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "nobody" in missing.stderr


def test_a_subscription_with_all_its_flags(cli: Cli, unique: str):
    """Snapshot, a delta, no empty one, no sow_key, an oof: the flags are the options of the client."""
    cli("topics", "apply")
    write(cli, f"{unique}.sow", "1", {"id": 1, "n": 1}, version="1")
    running = cli.start(
        *("subscribe", unique, "--sow", "--delta", "--oof", "--no-empties", "--no-sowkey", "--timestamp"),
        *("--count", "5", "--timeout", "120"),
    )
    assert running.stdout is not None
    assert [json.loads(running.stdout.readline())["command"] for _ in range(3)] == ["group_begin", "sow", "group_end"]
    write(cli, f"{unique}.sow", "1", {"id": 1, "n": 1}, version="2")
    write(cli, f"{unique}.sow", "1", {"id": 1, "n": 2, "m": 0}, version="3")
    write(cli, f"{unique}.sow", "1", None, version="4", kind="delete")
    out, err = running.communicate(timeout=150)
    delta, oof = lines(out)
    assert (delta["data"], delta["delta"], delta["version"]) == ({"id": 1, "n": 2, "m": 0}, True, 3)
    assert (oof["command"], oof["reason"], oof["data"]) == ("oof", "deleted", {"id": 1, "n": 2, "m": 0})
    assert "sow_key" not in delta
    assert "timestamp" in delta
    assert (running.returncode, err) == (0, "")


def test_fewer_messages_than_asked_for_is_a_failure(cli: Cli, unique: str):
    """`--count` with `--timeout` exits with 1 if too few messages came, `--timeout` alone with 0."""
    cli("topics", "apply")
    short = with_limits(
        lambda limit_s: cli("subscribe", unique, "--sow", "--count", "3", "--timeout", limit_s),
        lambda done: len(done.stdout.splitlines()) == 2,
    )
    assert (short.returncode, short.stderr) == (1, "2 of 3 messages came.\n")
    assert cli("subscribe", unique, "--timeout", "0.2").returncode == 0


def test_plugins_are_listed(cli: Cli):
    """Our own processors and codec are found in the same way as a third party's."""
    rows = [line.split("\t") for line in cli("plugins").stdout.splitlines()]
    assert {
        ("sowstream.processors", "delta_merge"),
        ("sowstream.processors", "conflate"),
        ("sowstream.codecs", "json"),
    } <= {(row[0], row[1]) for row in rows}
    assert {row[4] for row in rows} == {"ok"}


def test_the_doctor_gives_advice(cli: Cli, unique: str):
    """Missing topics are a failure with the command that creates them; afterwards, all checks pass."""
    ill = cli("doctor")
    assert ill.returncode == 1
    assert f"fail\t{unique}.sow\tdoes not exist\tsowstream topics apply" in ill.stdout
    cli("topics", "apply")
    well = cli("doctor")
    assert well.returncode == 0
    assert {"broker", "topics", "rocksdict", "librdkafka", "state_dir"} <= {
        line.split("\t")[1] for line in well.stdout.splitlines()
    }


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port that another socket uses."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield server.getsockname()[1]


def set_runtime(cli: Cli, **settings: object) -> None:
    """Write a `runtime` section to the settings."""
    cli.settings.write_text(yaml.safe_dump(yaml.safe_load(cli.settings.read_text()) | {"runtime": settings}))


def first_assigned(running: subprocess.Popen[str]) -> int:
    """Wait until a child has partitions; returns its number from its log."""
    assert running.stderr is not None
    for line in running.stderr:
        said = json.loads(line)
        if said["event"] == "assigned":
            return int(said["pid"])
    pytest.fail("no process got partitions")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_metrics_port_that_is_taken_ends_with_a_sentence(cli: Cli, taken_port: int, processes: str):
    """The error has the setting, the port and advice, without a traceback, also from a child process; exit code 1."""
    cli("topics", "apply")
    set_runtime(cli, metrics_port=taken_port)
    done = cli("worker", "--processes", processes)
    assert done.returncode == 1
    assert f"runtime.metrics_port {taken_port}: process 0 of this state_dir cannot serve metrics" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_process_is_reported_and_the_others_stop(cli: Cli):
    """Every line of a child has its number; the parent reports the child that ended, and exits with 1."""
    cli("topics", "apply")
    running = cli.start("worker", "--processes", "2")
    try:
        pid = first_assigned(running)
        os.kill(pid, signal.SIGKILL)
        _, err = running.communicate(timeout=150)
    finally:
        running.terminate()
    ended = [json.loads(line) for line in err.splitlines() if "ended by itself" in line]
    assert [(line["pid"], line["exit_code"]) for line in ended] == [(pid, -signal.SIGKILL)]
    assert running.returncode == 1
