"""`sowstream status` and `sowstream resume` on a real Kafka, with a thread in the place of a worker."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING

import pytest
import yaml
from confluent_kafka import Consumer

from processor.cli.main import run
from processor.config import load
from processor.installation.configured_pipelines import specs
from processor.installation.control_thread import ControlThread
from processor.installation.control_topic import ControlTopic
from processor.installation.pipeline_status import CONFIRMED_MS
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.publisher import Publisher
from processor.runtime.loop.held_tasks import Hold
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.broker]

RECORDS = 20


class Desk:
    """Topics with some records, the notices of a worker, and commands."""

    def __init__(self, directory: Path, bootstrap: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.name = name
        self.file = directory / "sowstream.yaml"
        tree = {
            "application_id": f"app-{name}",
            "kafka": {"bootstrap.servers": bootstrap},
            "topics": {name: {"partitions": 2}},
            "conflated": {f"{name}_slow": {"underlying": name}},
        }
        self.file.write_text(yaml.safe_dump(tree))
        self.config = load(self.file)
        self.admin = Admin(self.config.kafka)
        self.control = ControlTopic(self.config.kafka, self.admin)
        self._capsys = capsys
        self.voice = ControlThread(self.config.kafka, self.config.application_id, process="worker-0")
        self.voice.start()

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Run a command; returns its exit code, its data and its messages for people."""
        self._capsys.readouterr()
        code = run([*words, "-c", str(self.file)])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def hold(
        self, partition: int, offset: int, reason: str = "unreadable_batch", message: str = "it is ruined"
    ) -> None:
        """Write a worker's notice that a partition is held."""
        self.voice.report(self.name, partition, Hold(reason, message, offset, 1_700_000_000_000, 0, time.monotonic()))
        until(lambda: offset == self.held().get(partition), "the notice")

    def held(self) -> dict[int, int]:
        """The held partitions with their offsets."""
        entries = self.control.read(self.config.application_id)
        return (
            {} if entries is None else {one: notice.offset for one, notice in entries.held.get(self.name, {}).items()}
        )

    def obey(self, then: Hold | None) -> list[object]:
        """Obey the next order like a worker; returns it when it has arrived."""
        obeyed: list[object] = []

        def work() -> None:
            order = self.voice.orders(self.name).get(timeout=PATIENCE_S)
            obeyed.append(order)
            outcome = None if then is None else then._replace(order_ms=order.at_ms)
            self.voice.report(self.name, 0 if order.partition is None else order.partition, outcome)

        threading.Thread(target=work).start()
        return obeyed


@pytest.fixture
def desk(tmp_path: Path, bootstrap: str, unique: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    """A desk with topics, some records on the first partition of the input, and the group at offset 5."""
    made = Desk(tmp_path, bootstrap, unique, capsys)
    assert made("topics", "apply")[0] == 0
    publisher = Publisher(made.config.kafka)
    for number in range(RECORDS):
        publisher.send(f"{unique}.publish", b"1", b'{"id":1,"n":%d}' % number, partition=0)
    publisher.flush(120)
    made.admin.set_offsets(f"app-{unique}.{unique}", f"{unique}.publish", {0: 5})
    yield made
    made.voice.stop()
    made.admin.delete([spec.name for spec in specs(made.config)])


def test_status_without_a_worker_shows_offsets_and_lag(desk: Desk):
    """All of it comes from Kafka: no worker has ever run, and nothing is held."""
    code, data, said = desk("status")
    assert code == 0, said
    rows = [row.split("\t") for row in data.splitlines()]
    assert [desk.name, "0", "no worker", "5", "15", "", "", ""] in rows
    assert [desk.name, "1", "no worker", "-", "-", "", "", ""] in rows
    assert len(rows) == 4  # The conflated copy's partitions.
    assert f"{desk.name}: no worker; `sowstream worker {desk.name}` starts one" in said
    assert "Nothing is held." in said


def test_status_names_the_owner_of_each_partition(desk: Desk):
    """A member of the group is the owner of its partitions: in the table by name, in JSON with all of its names."""
    group = f"{desk.config.application_id}.{desk.name}"
    names = {"client.id": "w", "group.instance.id": "worker-7"}
    with contextlib.closing(Consumer({**desk.config.kafka, "group.id": group, **names})) as member:
        member.subscribe([f"{desk.name}.publish"])
        until(lambda: member.poll(0.1) is not None, "the member's first message")
        rows = [row.split("\t") for row in desk("status", desk.name)[1].splitlines()]
        code, data, said = desk("status", desk.name, "--json")
    assert [row[:3] for row in rows] == [[desk.name, "0", "worker-7"], [desk.name, "1", "worker-7"]]
    assert code == 0, said
    owners = [part["owner"] for part in json.loads(data)["pipelines"][0]["partitions"]]
    assert owners[0]["member_id"].startswith("worker-7")
    assert owners[0]["host"]
    one = {"member_id": owners[0]["member_id"], "client_id": "w", "host": owners[0]["host"], "instance": "worker-7"}
    assert owners == [one, one]


def test_status_shows_held_partitions_with_advice(desk: Desk):
    """A held partition is shown with advice and exit code 1; a single topic can be shown alone."""
    desk.hold(0, 5)
    desk.voice.report_failure(f"{desk.name}_slow", "the disk is full")
    until(lambda: "failed" in desk("status")[2], "the failure")
    code, data, said = desk("status")
    assert code == 1
    held = next(row.split("\t") for row in data.splitlines() if "unreadable_batch" in row)
    assert held[:6] == [desk.name, "0", "no worker", "5", "15", "unreadable_batch"]
    assert held[6].endswith(" days ago")
    assert held[7] == f"skip it: `sowstream resume {desk.name} --partition 0 --skip OFFSET`"
    assert f"{desk.name} partition 0 is held at offset 5: it is ruined" in said
    assert f"{desk.name}_slow: failed in worker-0 (process " in said
    assert "the disk is full" in said
    assert "1 partition held, 1 pipeline failed." in said
    code, data, said = desk("status", desk.name, "--json")
    tree = json.loads(data)
    assert (code, said) == (1, "")
    assert (tree["is_well"], tree["has_control_topic"]) == (False, True)
    (pipeline,) = tree["pipelines"]
    assert (pipeline["name"], pipeline["group_state"], pipeline["failed"]) == (desk.name, "empty", [])
    first, second = pipeline["partitions"]
    assert (first["offset"], first["end"], first["lag"], first["owner"]) == (5, RECORDS, 15, None)
    assert (first["held"]["reason"], first["held"]["since"]) == ("unreadable_batch", "2023-11-14T22:13:20+00:00")
    assert second["held"] is None


def test_status_ignores_outdated_notices(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    """Notices of a dead worker whose partition went on, and old failures, are not shown."""
    desk.hold(0, 4)
    desk.voice.report_failure(desk.name, "the disk is full")
    until(lambda: "disk is full" in desk("status", desk.name)[2], "the failure")
    code, data, said = desk("status", desk.name)
    assert (code, "unreadable_batch" in data) == (1, False)
    later_s = time.time() + CONFIRMED_MS / 1000 + 1
    monkeypatch.setattr("processor.installation.pipeline_status.time.time", lambda: later_s)
    code, _, said = desk("status", desk.name)
    assert (code, "Nothing is held." in said) == (0, True)


def test_status_shows_an_open_transaction(desk: Desk):
    """An open transaction of a publisher on the input is shown, as the partition's readers wait for it."""
    from confluent_kafka import Producer

    producer = Producer({**desk.config.kafka, "transactional.id": desk.name, "linger.ms": 0})
    producer.init_transactions(15)
    producer.begin_transaction()
    producer.produce(f"{desk.name}.publish", b"{}", b"1", partition=1)
    producer.flush(120)
    _, _, said = desk("status", desk.name)
    assert f"{desk.name}.publish partition 1: the last offset is behind an open transaction" in said
    producer.abort_transaction(15)
    assert "open transaction" not in desk("status", desk.name)[2]


def test_status_of_missing_topics(desk: Desk):
    """A topic that the settings or Kafka do not have is an error."""
    code, _, said = desk("status", f"{desk.name}x")
    assert (code, f"did you mean '{desk.name}'" in said) == (2, True)
    desk.admin.delete([f"{desk.name}.publish"])
    until(lambda: "input topic does not exist" in desk("status", desk.name)[2], "being told of the missing topic")


def test_resume_reports_resumed_partitions(desk: Desk):
    """`resume` prints that the partitions go on, for all partitions or for one."""
    assert desk("resume", desk.name) == (0, "", f"No worker says that a partition of {desk.name} is held.\n")
    desk.hold(0, 5)
    obeyed = desk.obey(None)
    assert desk("resume", desk.name)[:2] == (0, f"{desk.name} partition 0: goes on\n")
    [order] = obeyed
    assert (order.partition, order.skip_until) == (None, None)
    desk.hold(0, 5)
    desk.obey(None)
    assert desk("resume", desk.name, "--partition", "1")[0] == 0
    assert desk("resume", desk.name, "--partition", "0")[1] == f"{desk.name} partition 0: goes on\n"


def test_resume_reports_a_new_hold_with_its_reason(desk: Desk):
    """A partition that is held again is printed with the reason, and the exit code is 1."""
    desk.hold(0, 5)
    desk.obey(Hold("registry", "the registry is silent", 5, 1, 1, time.monotonic()))
    code, data, _ = desk("resume", desk.name)
    assert (code, data) == (1, f"{desk.name} partition 0: held again: the registry is silent\n")


def test_resume_without_a_worker_ends_in_time(desk: Desk):
    """With a dead worker, `resume` ends with exit code 1 and advice."""
    desk.hold(0, 5)
    code, data, _ = desk("resume", desk.name, "--timeout", "1")
    assert code == 1
    assert data.startswith(f"{desk.name} partition 0: no worker has obeyed within 1 s; the order stands")


def test_resume_starts_a_failed_pipeline(desk: Desk):
    """An order for all partitions also restarts the pipeline."""
    desk.voice.report_failure(desk.name, "the disk is full")
    until(lambda: "disk is full" in desk("status", desk.name)[2], "the failure")

    def work() -> None:
        desk.voice.orders(desk.name).get(timeout=PATIENCE_S)
        desk.voice.report_failure(desk.name, None)

    threading.Thread(target=work).start()
    assert desk("resume", desk.name)[:2] == (0, f"{desk.name} the pipeline in worker-0: goes on\n")


def test_a_skip_is_shown_before_it_is_done(desk: Desk):
    """Without --yes nothing is ordered, the number of skipped offsets is printed, and the exit code is 2."""
    desk.hold(0, 5)
    code, data, said = desk("resume", desk.name, "--partition", "0", "--skip", "7")
    assert (code, data) == (2, "")
    assert "would not process the 3 offsets from 5 to 7" in said
    assert f"{desk.name}.dlq" in said
    assert "--yes" in said
    assert desk.voice.orders(desk.name).empty()


def test_a_skip_is_ordered_and_awaited(desk: Desk):
    """A worker that retries the same record has not seen the order; one held after it has."""
    desk.hold(0, 5)
    obeyed = desk.obey(None)
    code, data, _ = desk("resume", desk.name, "--partition", "0", "--skip", "7", "--yes")
    assert (code, data) == (0, f"{desk.name} partition 0: goes on\n")
    [order] = obeyed
    assert (order.partition, order.skip_until) == (0, 7)
    desk.hold(0, 8)

    def work() -> None:
        order = desk.voice.orders(desk.name).get(timeout=PATIENCE_S)
        desk.hold(0, 8, message="not yet")
        after = Hold("unreadable_batch", "the next one", 10, 1, 0, time.monotonic(), order.at_ms)
        desk.voice.report(desk.name, 0, after)

    threading.Thread(target=work).start()
    code, data, _ = desk("resume", desk.name, "--partition", "0", "--skip", "9", "--yes")
    assert (code, data) == (1, f"{desk.name} partition 0: held again: the next one\n")


def test_a_skip_that_cannot_be_meant_is_refused(desk: Desk):
    """An invalid skip orders nothing and exits with code 2."""
    desk.hold(0, 5)
    for words, why in {
        ("--skip", "7", "--yes"): "--skip needs --partition",
        ("--partition", "1", "--skip", "7", "--yes"): "no worker says that it is held",
        ("--partition", "0", "--skip", "4", "--yes"): "stands at offset 5",
        ("--partition", "0", "--skip", "20", "--yes"): "ends at offset 20 now; --skip takes 19 at most",
    }.items():
        code, _, said = desk("resume", desk.name, *words)
        assert (code, why in said) == (2, True), said
    assert desk.voice.orders(desk.name).empty()
    desk.hold(0, -1, "state_locked", "give each worker its own state_dir")
    code, _, said = desk("resume", desk.name, "--partition", "0", "--skip", "7", "--yes")
    assert code == 2
    assert "to skip does not help. give each worker its own state_dir" in said
