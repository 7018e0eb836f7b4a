"""Each ACL is needed: without it, and with all others, the doctor names the resource and the right."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from processor.operate.findings import check_role
from tests.secured.estate import Acl, Estate
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.secured.secured_broker import SecuredBroker

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1800)]


ROLES = ("worker", "conflater", "viewer", "gateway", "publisher", "subscriber", "consumer", "settler")


@pytest.fixture
def estate(broker: SecuredBroker, mechanism, tmp_path: Path, unique: str) -> Iterator[Estate]:
    """Topics without a prefix, so that each has ACLs of its own."""
    made = Estate(broker, mechanism, tmp_path, unique, has_prefix=False)
    made.create_topics()
    yield made
    made.close()


@contextmanager
def without(estate: Estate, acl: Acl) -> Iterator[None]:
    """Take an ACL away for a while."""
    estate.revoke([acl])
    try:
        yield
    finally:
        estate.grant([acl])


def seen_by_doctor(acl: Acl) -> bool:
    """Kafka reports no rights to transactional ids and the cluster."""
    return acl.kind in ("topic", "group")


def is_included(acl: Acl, acls: list[Acl]) -> bool:
    """Return whether another ACL includes this one: by Kafka's rule `Read` and `Write` include `Describe`."""
    if acl.operation != "Describe":
        return False
    return any(acl._replace(operation=other) in acls for other in ("Read", "Write"))


@pytest.mark.parametrize("role", ROLES)
def test_the_doctor_finds_each_missing_right(estate: Estate, role: str) -> None:
    """With all ACLs of a role the doctor finds nothing; without one it names that resource and that operation."""
    acls = estate.printed_acls()
    estate.grant(acls)
    config = estate.config_of(role)
    until(lambda: _failures(config, role) == [], f"all rights of {role}")
    own = [acl for acl in acls if acl.who == role and seen_by_doctor(acl) and not is_included(acl, acls)]
    assert own
    for acl in own:
        expected = (f"group {acl.name}" if acl.kind == "group" else acl.name, acl.operation)
        with without(estate, acl):
            until(lambda expected=expected: _named(config, role, *expected), str(acl))
        until(lambda: _failures(config, role) == [], f"{acl} again")


def _failures(config, role) -> list[tuple[str, str]]:
    return [(one.subject, one.found) for one in check_role(config, role, 15) if one.level == "fail"]


def _named(config, role: str, subject: str, operation: str) -> bool:
    """Return whether the doctor's only complaint is this right."""
    failures = _failures(config, role)
    return bool(failures) and all(
        one.startswith(subject) and operation in found.removeprefix("this user lacks ").split(", ")
        for one, found in failures
    )
