"""The findings of `sowstream doctor` about the gateway, registered schemas and the state directory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema

from processor.codec.schema_registry.http_client import new_client
from processor.config import Config
from processor.operate.doctor import Finding, check_gateway, check_state
from processor.operate.findings import check_schemas


def config(**gateway: object) -> Config:
    """Settings with a section `gateway`."""
    return Config.model_validate({"topics": {"orders": {"key": ["/id"]}}, "gateway": gateway})


def test_a_gateway_that_can_start_is_well() -> None:
    """Doctor says how many topics a gateway serves, and where, and says nothing without a section."""
    pytest.importorskip("uvicorn")
    [finding] = check_gateway(config(listen="127.0.0.1:8080"))
    assert (finding.level, finding.found) == ("ok", "serves 1 topics at 127.0.0.1:8080")
    assert check_gateway(Config.model_validate({"topics": {"orders": {"key": ["/id"]}}})) == []


def test_files_that_cannot_be_used_are_faults(tmp_path: Path) -> None:
    """A missing tokens file, and an entitlement to a topic that is not served, are faults with their place."""
    pytest.importorskip("uvicorn")
    rights = tmp_path / "entitlements.yaml"
    rights.write_text("users: {ann: {ordrs: {read: true}}}")
    tokens = tmp_path / "tokens.yaml"
    files = {"auth": {"tokens_file": tokens}, "entitlements": rights}
    [missing] = check_gateway(config(**files))
    assert missing.level == "fail"
    assert "tokens.yaml" in missing.found
    tokens.write_text("t: {user: ann}")
    [wrong] = check_gateway(config(**files))
    assert wrong.level == "fail"
    assert "users.ann.ordrs" in wrong.found


URL = "mock://doctor"


def test_a_missing_subject_is_found_and_a_registered_one_is_well() -> None:
    """Each topic has a finding; one whose schema is in a file has none."""
    topic = {"message_type": "avro", "schema": {"subject": "orders.publish-value"}}
    config = Config.model_validate({"schema_registry": {"url": URL}, "topics": {"orders": topic, "plain": {}}})
    [finding] = check_schemas(config)
    assert (finding.level, finding.subject) == ("fail", "schema of orders")
    assert "has no subject orders.publish-value" in finding.found
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    new_client({"url": URL}, URL).register_schema("orders.publish-value", Schema(json.dumps(order), "AVRO"))
    assert [(one.level, one.found) for one in check_schemas(config)] == [("ok", "subject orders.publish-value")]


_NOBODY = 65534
"""The user without rights, on every Linux."""


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    """The findings by subject."""
    return {finding.subject: finding for finding in findings}


def test_a_missing_directory_is_well_where_it_can_be_made(tmp_path: Path):
    """A missing directory that a worker can create is fine; the doctor does not create it."""
    found = by_subject(check_state(tmp_path / "a" / "b"))
    assert found["state_dir"].level == "ok"
    assert "made when needed" in found["state_dir"].found
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_way_is_a_failure(tmp_path: Path):
    """A path through a file is a failure, with the flag that names another directory."""
    (tmp_path / "file").touch()
    (finding,) = check_state(tmp_path / "file" / "state")
    assert (finding.level, "--state-dir" in finding.to_do) == ("fail", True)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory of a test that runs without the rights of the superuser, who may read and write everywhere."""
    path, user = Path(tempfile.mkdtemp()), os.geteuid()
    path.chmod(0o777)
    if user == 0:
        os.seteuid(_NOBODY)
    yield path / "state"
    os.seteuid(user)
    (path / "state").chmod(0o700)
    shutil.rmtree(path)


@pytest.mark.parametrize("mode", [0o500, 0o000])
@pytest.mark.parametrize("below", ["", "app", "deep/app"])
def test_a_directory_without_permission_is_a_failure(directory: Path, mode: int, below: str):
    """A directory that this user may not write to, or not even enter, is a failure that names it."""
    directory.mkdir(mode)
    (finding,) = check_state(directory / below)
    assert (finding.level, finding.found) == ("fail", f"{directory}: Permission denied")


def test_slots_without_permission_are_left_out(directory: Path):
    """A slot file that this user may not read hides no other finding."""
    (directory / "slots").mkdir(parents=True)
    (directory / "slots" / "0").touch(0o000)
    assert by_subject(check_state(directory))["state_dir"].level == "ok"


def test_who_uses_it_is_told(tmp_path: Path):
    """Living worker processes are listed by the process ids in their slots; dead ones are not."""
    slots = tmp_path / "slots"
    slots.mkdir()
    (slots / "0").write_text(str(os.getpid()))
    (slots / "1").write_text("999999999")
    (slots / "2").write_text("")
    assert by_subject(check_state(tmp_path))["state in use"].found == f"by worker processes {os.getpid()}"
