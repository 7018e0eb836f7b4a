"""The calls on a connection that uvicorn's protocols give to the application beside ASGI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PART_BYTES: Final = 4096
"""What is parsed at a time of the bytes that have come, before a limit is looked at again: 700 empty frames."""


class Transport:
    """The calls on a connection for which ASGI has no message.

    ::

        uvicorn's protocols ── scope["extensions"][Transport.EXTENSION] ──▶ Transport.of(scope): application, websocket

    A WebSocket's client (`websocket.py`) makes a `FrameSender` of it, which its session calls.
    """

    EXTENSION: ClassVar[str] = "sowstream.transport"
    """The key of the extensions of an ASGI scope."""

    __slots__ = ("abort", "admit", "write_frame")

    def __init__(
        self,
        abort: Callable[[], None],
        write_frame: Callable[[Callable[[], bytes | None]], bool] | None = None,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        self.abort: Final = abort
        """Closes the connection without waiting for the client."""
        self.write_frame: Final = write_frame
        """Writes the bytes of the next frame at once; returns False, without asking for it, if the client does not take
        it. None: frames are sent as messages of ASGI."""
        self.admit: Final = admit
        """Lets a client that has an identity now send messages of the size that the settings allow."""

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> Transport | None:
        """The transport of an ASGI scope; None: another server serves it."""
        transport: Transport | None = scope.get("extensions", {}).get(cls.EXTENSION)
        return transport
