"""Collects the faults that librdkafka reports in its log and to `error_cb`, for one client."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from processor.kafka.connection.fault import Fault, fault_in
from processor.kafka.connection.probe import STEP_S, explain, steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import KafkaError

_DEFAULT_PORT = 9092
_GLANCE_S = 1.0
"""Longest time for one step of an early look."""


class FaultLog:
    """The last fault of each address; a logger for one client. It is filled while the client is polled.

    The lines go on to the log at level DEBUG: the error of the command, or the line of an outage, has the reason.
    """

    def __init__(self, kafka: Mapping[str, Any], log: logging.Logger, *, awaits_names: bool = False) -> None:
        """Start without faults.

        Args:
            kafka: the properties of the client.
            log: receives the lines.
            awaits_names: whether a host without a name may get one, as when containers start in any order.
        """
        self._kafka = kafka
        self._log = log
        self._awaits_names = awaits_names
        self._faults: dict[str, Fault] = {}

    def listening(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """The properties of a client whose faults are collected here."""
        return {**properties, "logger": self, "error_cb": self._on_error}

    def log(self, _level: int, text: str, *arguments: object) -> None:
        """Log a line as `logging.Logger.log` does; librdkafka's arguments are its facility, the client, the message."""
        if len(arguments) == 3:
            self._add(str(arguments[2]))
        self._log.debug(text, *arguments)

    def _on_error(self, error: KafkaError) -> None:
        self._add(error.str())

    def _add(self, text: str) -> None:
        fault = fault_in(text)
        if fault is not None:
            self._keep(fault)

    def _keep(self, fault: Fault) -> None:
        before = self._faults.get(fault.address)
        # A router's refusal may come once only; later tries then get no answer.
        if fault.kind != "silent" or before is None or before.kind != "unreachable":
            self._faults[fault.address] = fault

    def clear(self) -> None:
        """Forget all faults, as a broker has answered. If its name does not resolve later, it will again."""
        self._faults.clear()
        self._awaits_names = True

    @property
    def ends_the_wait(self) -> bool:
        """True if waiting is of no use: every address of the settings has a fault that stays, or a wrong name."""
        gives_up = not self._awaits_names
        final = sum(fault.is_final or (gives_up and fault.is_wrong_name) for fault in self._faults.values())
        return final > 0 and final >= len(addresses_of(self._kafka))

    def look_closer(self) -> str:
        """Look at the addresses, so that faults that librdkafka does not log are known early; return the reasons."""
        faults = self.explained(timeout_s=_GLANCE_S)
        for fault in faults:
            self._keep(fault)
        return "; ".join(fault.found for fault in faults)

    def explained(self, *, timeout_s: float = STEP_S) -> list[Fault]:
        """The faults, with ambiguous ones resolved by a look at the address; takes up to `timeout_s` for each step."""
        faults = list(self._faults.values())
        if not faults:
            addresses = addresses_of(self._kafka)
            reached = [steps(address, self._kafka, timeout_s=timeout_s)[-1].fault for address in addresses]
            faults = [fault for fault in reached if fault is not None] or [Fault("mute", one) for one in addresses]
        return [explain(fault, self._kafka, timeout_s=timeout_s) for fault in faults]


def addresses_of(kafka: Mapping[str, Any]) -> list[str]:
    """The addresses of `bootstrap.servers`, each as `host:port`."""
    addresses = []
    for entry in str(kafka.get("bootstrap.servers", "")).split(","):
        address = entry.strip().rpartition("://")[2]
        if address:
            has_port = address.rpartition(":")[2].isdecimal() and not address.endswith("]")
            addresses.append(address if has_port else f"{address}:{_DEFAULT_PORT}")
    return addresses
