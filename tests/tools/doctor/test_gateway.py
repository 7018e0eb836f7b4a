"""`sowstream doctor` about the section `gateway`."""

from pathlib import Path

import pytest

from processor.config import Config
from processor.tools.doctor.examine import check_gateway

pytest.importorskip("uvicorn")


def config(**gateway: object) -> Config:
    """Settings with a section `gateway`."""
    return Config.model_validate({"topics": {"orders": {"key": ["/id"]}}, "gateway": gateway})


def test_a_gateway_that_can_start_is_well() -> None:
    """Doctor says how many topics a gateway serves, and where, and says nothing without a section."""
    [finding] = check_gateway(config(listen="127.0.0.1:8080"))
    assert (finding.level, finding.found) == ("ok", "serves 1 topics at 127.0.0.1:8080")
    assert check_gateway(Config.model_validate({"topics": {"orders": {"key": ["/id"]}}})) == []


def test_files_that_cannot_be_used_are_faults(tmp_path: Path) -> None:
    """A missing tokens file, and an entitlement to a topic that is not served, are faults with their place."""
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
