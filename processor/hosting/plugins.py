"""The installed plug-ins: the processors that packages offer as entry points."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from processor.config.suggestions import unknown_name
from processor.entry_points import load_installed
from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.api import Processor

GROUP = "sowstream.processors"


def installed() -> dict[str, type[Processor]]:
    """Load every processor that an installed package offers, by name.

    Raises:
        ConfigurationError: an entry point does not lead to a Processor, cannot be imported, or has a wrong declaration.
    """
    from processor.hosting.declaration import check_declaration  # noqa: PLC0415 - needs pydantic

    processors: dict[str, type[Processor]] = {}
    for entry_point in entry_points(group=GROUP):
        processor_type = load_installed(entry_point, "processor")
        check_declaration(processor_type, f"{entry_point.name!r} ({entry_point.value})")
        processors[entry_point.name] = processor_type
    return processors


def plugin_of(plugins: Mapping[str, type[Processor]], plugin: str, name: str) -> type[Processor]:
    """Return an installed processor.

    Raises:
        ConfigurationError: there is none of this name.
    """
    if (processor_type := plugins.get(plugin)) is None:
        raise ConfigurationError(
            f"{name}: {unknown_name('processor', plugin, list(plugins))}; is its package installed?"
        )
    return processor_type
