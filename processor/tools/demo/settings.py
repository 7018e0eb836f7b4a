"""What the demo configures: two topics, a conflated copy of each, and a runtime that shows a recovery soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from processor.config import Config, load
from processor.hosting.pipeline import specs
from processor.topics.family import Role

PARTITIONS: Final = 4

TOPICS: Final = {"orders": "/id", "prices": "/pair"}
"""The SOW topics and the field that is their key."""

CONFLATED: Final = {"prices_1s": ("prices", 1.0), "orders_2s": ("orders", 2.0)}
"""The conflated topics: what each copies, and its interval in seconds."""

_SMALL: Final = {"segment.bytes": str(8 * 2**20), "retention.bytes": str(16 * 2**20)}
"""What keeps a demo without end from filling the disk: about half a gigabyte at most, all partitions together."""


class Setup(NamedTuple):
    """The settings, and where they are."""

    file: Path
    """The settings file that the workers read."""
    config: Config
    """The same, read."""
    prefix: str
    """What the names of all families begin with; empty on a broker of our own."""

    @property
    def state_dir(self) -> Path:
        """Where the workers keep their state."""
        return self.config.state_dir

    @property
    def bootstrap(self) -> str:
        """The address of the broker."""
        return self.config.kafka["bootstrap.servers"]

    def family(self, name: str) -> str:
        """The real name of `orders` and the others."""
        return self.prefix + name

    def topic(self, name: str, role: Role) -> str:
        """The Kafka topic of `orders` and the others."""
        return self.config.kafka_names.topic(self.family(name), role)

    def group(self, name: str) -> str:
        """The consumer group that works on a family."""
        return f"{self.config.group_prefix}.{self.family(name)}"

    def kafka_topics(self) -> list[str]:
        """Every Kafka topic of the demo."""
        return [spec.name for spec in specs(self.config)]


def write_settings(directory: Path, bootstrap: str, prefix: str, *, is_endless: bool) -> Setup:
    """Write `sowstream.yaml` into a directory, and read it as the workers will.

    Args:
        directory: where the file goes, and the workers' state.
        bootstrap: the broker.
        prefix: what the names of all families begin with.
        is_endless: nobody will read everything at the end, so Kafka may throw away what is old.
    """
    file = directory / "sowstream.yaml"
    file.write_text(
        yaml.safe_dump(_tree(bootstrap, prefix, _SMALL if is_endless else {}), sort_keys=False), encoding="utf-8"
    )
    return Setup(file, load(file, bootstrap=bootstrap, state_dir=directory / "state"), prefix)


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
        # Kafka's default lower bound: what a killed worker had is another's after six seconds.
        "runtime": {"session_timeout_s": 6.0},
    }
