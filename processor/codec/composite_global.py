"""composite-global: parts as in composite-local, carried whole."""

from __future__ import annotations

from typing import ClassVar

from processor.codec.composite_local import CompositeLocalCodec


class CompositeGlobalCodec(CompositeLocalCodec):
    """The message type `composite-global`: full messages; every part is parsed, for keys and filters."""

    message_type: ClassVar[str] = "composite-global"
    has_opaque_parts: ClassVar[bool] = False
    can_delta: ClassVar[bool] = False
