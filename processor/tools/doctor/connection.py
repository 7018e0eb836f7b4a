"""Checks the way to Kafka step by step: name, connection, TLS, login, and the addresses that the brokers advertise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.errors import Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.first_contact import Cluster
from processor.kafka.connection import addresses_of, steps
from processor.kafka.connection.fault import parts_of
from processor.tools.doctor.finding import Finding

if TYPE_CHECKING:
    from processor.config import Config

_ADVERTISED_MAX = 9
"""Brokers whose advertised addresses are looked at."""


def check_connection(config: Config, timeout_s: float) -> tuple[list[Finding], Admin | None, Cluster | None]:
    """Connect to Kafka step by step.

    Returns:
        The findings, and the administration client with the cluster; None and None where a step failed.
    """
    kafka = config.kafka
    try:
        admin = Admin(kafka)
    except Stop as error:
        return [Finding("fail", "kafka", str(error), "correct the section kafka of the settings")], None, None
    by_address = [_of_address(address, kafka) for address in addresses_of(kafka)]
    findings = [finding for of_address in by_address for finding in of_address]
    reached = [of_address for of_address in by_address if of_address[-1].level == "ok"]
    if not reached:
        return findings, None, None
    # One address of several suffices.
    findings = [finding._replace(level="warn") if finding.level == "fail" else finding for finding in findings]
    try:
        cluster = admin.cluster(timeout_s)
    except Stop as error:
        found, to_do = parts_of(error)
        return [*findings, Finding("fail", "login and first request", found, to_do)], None, None
    protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
    login = f", login by {kafka.get('sasl.mechanism', 'GSSAPI')}" if "SASL" in protocol else ""
    findings.append(Finding("ok", "broker", f"{', '.join(cluster.brokers)} ({protocol}{login})"))
    return [*findings, *_advertised(cluster, kafka)], admin, cluster


def _of_address(address: str, kafka: dict[str, str]) -> list[Finding]:
    findings = []
    for step in steps(address, kafka):
        if step.fault is not None:
            findings.append(Finding("fail", f"{step.name} {address}", step.fault.found, step.fault.to_do))
        else:
            findings.append(Finding("ok", f"{step.name} {address}", step.found))
    return findings


def _advertised(cluster: Cluster, kafka: dict[str, str]) -> list[Finding]:
    """Look at the addresses that clients use after the first request."""
    others = [address for address in cluster.brokers if address not in addresses_of(kafka)]
    findings = []
    for address in others[:_ADVERTISED_MAX]:
        last = steps(address, kafka)[-1]
        if last.fault is not None:
            findings.append(
                Finding(
                    "fail",
                    f"advertised {address}",
                    f"the brokers send clients to this address, and it cannot be used: {last.fault.found}",
                    "correct advertised.listeners of the brokers, or make the address known here",
                )
            )
    return findings
