"""The demo's configuration: two topics, a conflated copy of each, a view, and a runtime that recovers fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from processor.config import Config, load
from processor.installation.configured_pipelines import specs

PARTITIONS: Final = 4

TOPICS: Final = {"orders": "/id", "prices": "/pair"}
"""The SOW topics and their key fields."""

CONFLATED: Final = {"prices_1s": ("prices", 1.0), "orders_2s": ("orders", 2.0)}
"""The conflated topics: the topic that each copies, and its interval in seconds."""

VIEW: Final = "open_by_customer"
"""The view: how many open orders each customer has, and their quantity."""

CLOSED: Final = ("filled", "cancelled")
"""The states of orders that are not open."""

_SMALL: Final = {"segment.bytes": str(8 * 2**20), "retention.bytes": str(16 * 2**20)}
"""Limits that keep an endless demo from filling the disk: about half a gigabyte, over all partitions."""


class DemoSetup(NamedTuple):
    """The settings, and their location."""

    file: Path
    """The settings file that the workers read."""
    config: Config
    """The settings, loaded."""
    prefix: str
    """The prefix of all family names; empty on an embedded broker."""

    @property
    def state_dir(self) -> Path:
        """The directory of the workers' state."""
        return self.config.state_dir

    @property
    def bootstrap(self) -> str:
        """The address of the broker."""
        return self.config.kafka["bootstrap.servers"]

    def family(self, name: str) -> str:
        """The full name of a family such as `orders`."""
        return self.prefix + name

    def topic(self, name: str, role: str) -> str:
        """The Kafka topic of a family such as `orders`."""
        return self.config.kafka_names.topic(self.family(name), role)

    def group(self, name: str) -> str:
        """The consumer group of a family's workers."""
        return f"{self.config.group_prefix}.{self.family(name)}"

    def kafka_topics(self) -> list[str]:
        """All Kafka topics of the demo."""
        return [spec.name for spec in specs(self.config)]


def write_settings(directory: Path, bootstrap: str, prefix: str, *, is_endless: bool) -> DemoSetup:
    """Write `sowstream.yaml` into a directory, and load it as the workers will.

    Args:
        directory: the directory of the file and of the workers' state.
        bootstrap: the broker.
        prefix: the prefix of all family names.
        is_endless: whether the topics are never read in full, so that Kafka may delete old records.
    """
    file = directory / "sowstream.yaml"
    file.write_text(
        yaml.safe_dump(_tree(bootstrap, prefix, _SMALL if is_endless else {}), sort_keys=False), encoding="utf-8"
    )
    return DemoSetup(file, load(file, bootstrap=bootstrap, state_dir=directory / "state"), prefix)


def _tree(bootstrap: str, prefix: str, config: dict[str, str]) -> dict[str, Any]:
    return {
        "application_id": f"{prefix or 'demo_'}workers".replace("_", "-"),
        "kafka": {"bootstrap.servers": bootstrap},
        "topics": {
            prefix + name: {"key": [key], "partitions": PARTITIONS, "config": config} for name, key in TOPICS.items()
        },
        "conflated": {
            prefix + name: {"underlying": prefix + underlying, "interval": f"{interval_s:g}s"}
            for name, (underlying, interval_s) in CONFLATED.items()
        },
        "views": {
            prefix + VIEW: {
                "underlying": f"{prefix}orders",
                "filter": f"/state NOT IN {CLOSED}",
                "group_by": ["/customer"],
                "fields": {"/orders": "COUNT(*)", "/qty": "SUM(/qty)"},
                "config": config,
            }
        },
        # Kafka's default lower bound: a killed worker's partitions move after six seconds.
        "runtime": {"session_timeout_s": 6.0},
    }
