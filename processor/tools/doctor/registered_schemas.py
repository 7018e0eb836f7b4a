"""Fetches the schemas of topics that a registry has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.codec import codec_of
from processor.errors import ConfigurationError, Stop
from processor.hosting.settings_check import registry_subject_of
from processor.tools.doctor.finding import Finding

if TYPE_CHECKING:
    from processor.config import Config


def check_schemas(config: Config) -> list[Finding]:
    """Fetch and compile the schemas that a registry has; one that does not answer is asked once."""
    findings = []
    for name in config.topics:
        subject = registry_subject_of(config, name)
        if subject is None:
            continue
        try:
            codec_of(config, name)
        except Stop as error:
            to_do = "correct schema_registry or the schema of the topic, or register the subject"
            findings.append(Finding("fail", f"schema of {name}", str(error), to_do))
            if not isinstance(error, ConfigurationError):
                break  # Each further topic would wait as long.
        else:
            findings.append(Finding("ok", f"schema of {name}", f"subject {subject}"))
    return findings
