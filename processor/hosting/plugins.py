"""The installed plug-ins: the processors that packages offer as entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final

from processor.config.suggestions import unknown_name
from processor.entry_points import load_installed
from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from processor.api import Processor

GROUP: Final = "sowstream.processors"


class Installed(Mapping[str, "type[Processor]"]):
    """The processors that installed packages offer, by name; each is loaded when it is first asked for.

    A package whose plug-in is broken stops the topics that use it, and no others.
    """

    def __init__(self, points: Mapping[str, EntryPoint]) -> None:
        """Start with nothing loaded; `points` are the entry points by name."""
        self._points = points
        self._loaded: dict[str, type[Processor]] = {}

    def __getitem__(self, name: str) -> type[Processor]:
        """Load a processor.

        Raises:
            KeyError: there is none of this name.
            ConfigurationError: its entry point does not lead to a Processor, cannot be imported, or has a wrong
                declaration.
        """
        if name not in self._loaded:
            self._loaded[name] = load_processor(self._points[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._points)

    def __len__(self) -> int:
        """The number of processors."""
        return len(self._points)


def installed() -> Installed:
    """The processors of the packages that are installed now."""
    return Installed({point.name: point for point in entry_points(group=GROUP)})


def load_processor(point: EntryPoint) -> type[Processor]:
    """Load one processor, and check its declaration.

    Raises:
        ConfigurationError: the entry point does not lead to a Processor, cannot be imported, or has a wrong
            declaration.
    """
    from processor.hosting.declaration import check_declaration  # noqa: PLC0415 - needs pydantic

    processor_type: type[Processor] = load_installed(point, "processor")
    check_declaration(processor_type, f"{point.name!r} ({point.value})")
    return processor_type


def plugin_of(plugins: Mapping[str, type[Processor]], plugin: str, name: str) -> type[Processor]:
    """Return an installed processor.

    Raises:
        ConfigurationError: there is none of this name, or it cannot be used.
    """
    if (processor_type := plugins.get(plugin)) is None:
        raise ConfigurationError(
            f"{name}: {unknown_name('processor', plugin, list(plugins))}; is its package installed?"
        )
    return processor_type
