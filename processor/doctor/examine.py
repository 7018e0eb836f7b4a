"""All checks, in the order in which a person would look."""

from __future__ import annotations

from processor.config import Config
from processor.doctor.finding import Finding
from processor.doctor.state import check_state
from processor.doctor.topics import check_kafka
from processor.doctor.versions import check_versions


def examine(config: Config) -> list[Finding]:
    """Look at everything; nothing is changed."""
    return [*check_versions(), *check_kafka(config), *check_state(config.state_dir)]
