"""The public names of Sowstream: `from sowstream import Client`. The code is in the package `processor`.

Each name is imported at its first use, so that a program pays for its own part only. Both packages have the same
objects: `sowstream.Client is processor.client.Client`, and `sowstream.api is processor.api`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from processor import api, errors, testing
    from processor.client import (
        Ack,
        AsyncClient,
        Client,
        Message,
        Queue,
        QueueMessage,
        QueueMetrics,
        Subscription,
        TopicInfo,
        TypedView,
        View,
    )
    from processor.config import Config, load

_HOMES: Final = {
    "Ack": "processor.client",
    "AsyncClient": "processor.client",
    "Client": "processor.client",
    "Config": "processor.config",
    "Message": "processor.client",
    "Queue": "processor.client",
    "QueueMessage": "processor.client",
    "QueueMetrics": "processor.client",
    "Subscription": "processor.client",
    "TopicInfo": "processor.client",
    "TypedView": "processor.client",
    "View": "processor.client",
    "load": "processor.config",
}
_MODULES: Final = frozenset(("api", "errors", "spark", "testing"))

__all__ = [
    "Ack",
    "AsyncClient",
    "Client",
    "Config",
    "Message",
    "Queue",
    "QueueMessage",
    "QueueMetrics",
    "Subscription",
    "TopicInfo",
    "TypedView",
    "View",
    "api",
    "errors",
    "load",
    "testing",
]


def __getattr__(name: str) -> object:
    """Import a name at its first use."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        return import_module("processor").__version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]
