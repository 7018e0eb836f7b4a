"""All checks, in the order in which a person would look."""

from __future__ import annotations

from processor.config import Config
from processor.tools.doctor.finding import Finding
from processor.tools.doctor.state import check_state
from processor.tools.doctor.topics import check_kafka
from processor.tools.doctor.versions import check_versions


def examine(config: Config) -> list[Finding]:
    """Look at everything; nothing is changed."""
    return [*check_versions(), *check_kafka(config), *check_state(config.state_dir)]
