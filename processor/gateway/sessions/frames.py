"""Encodes messages to frames. A message for many clients is encoded once; each adds its own subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from websockets.frames import Frame, Opcode

from processor.codec.json_value import to_json_line
from processor.record import Value
from processor.subscriptions import Message

_SUB_IDS: Final = Message._fields.index("sub_ids")
_HEADERS: Final = Message._fields.index("headers")
_Memo: TypeAlias = tuple[object, ...]
_SHARED_BYTES_MAX: Final = 64 * 1024
"""Larger frames are snapshots, which no two sessions share."""


class FrameEncoder:
    """Encodes the messages of all sessions; `forget` is called with each tick."""

    def __init__(self) -> None:
        self._bodies: dict[_Memo, tuple[Value, str]] = {}
        self._texts: dict[int, tuple[Message, str]] = {}  # By the id of the message, which is kept.
        self._frames: dict[_Memo, str] = {}
        self._encoded: dict[str, bytes] = {}
        self.messages = 0
        """Messages that were encoded, each counted once for all clients."""

    def forget(self) -> None:
        """Forget the messages encoded so far."""
        if self._texts:
            self._bodies, self._texts, self._frames, self._encoded = {}, {}, {}, {}

    def frame(self, bodies: Sequence[str], bookmarks: Mapping[str, str]) -> str:
        """A frame of messages alone; sessions with the same messages and bookmarks share it."""
        memo = (*bodies, *bookmarks.items())
        frame = self._frames.get(memo)
        if frame is None:
            frame = self._frames[memo] = frame_of((), bodies, bookmarks)
        return frame

    def encoded(self, frame: str) -> bytes:
        """A frame as the bytes of a WebSocket frame; encoded once for all sessions that share it."""
        data = self._encoded.get(frame)
        if data is None:
            data = Frame(Opcode.TEXT, frame.encode()).serialize(mask=False)
            if len(data) < _SHARED_BYTES_MAX:
                self._encoded[frame] = data
        return data

    def message(self, message: Message) -> str:
        """A message as JSON without the closing brace."""
        if message.command == "sow":
            return self._message(message)
        text = self._texts.get(id(message))
        if text is None:
            text = self._texts[id(message)] = message, self._message(message)
        return text[1]

    def _message(self, message: Message) -> str:
        data = message.data
        if data is None or message.command == "sow":
            body = self._body(message)
        else:
            # Messages of one update share their data; the memo keeps it, so that its id stays its own.
            memo = (
                id(data),
                message.command,
                message.topic,
                message.sow_key,
                message.version,
                message.delta,
                message.delta_base,
                message.timestamp,
                message.reason,
            )
            entry = self._bodies.get(memo)
            if entry is None:
                entry = self._bodies[memo] = (data, self._body(message))
            body = entry[1]
        subs = message.sub_ids
        return f'{{"subs":{_ids(subs)},{body}'

    def _body(self, message: Message) -> str:
        self.messages += 1
        fields = {
            name: value
            for at, (name, value) in enumerate(zip(Message._fields, message, strict=True))
            if at not in (_SUB_IDS, _HEADERS) and value is not None and value is not False and value != ()
        }
        if message.headers:
            fields["headers"] = dict(message.headers)
        return to_json_line(fields)[1:-1]


def frame_of(
    control: Sequence[str], bodies: Sequence[str], bookmarks: Mapping[str, str], rows: Mapping[str, int] | None = None
) -> str:
    """A frame: what was answered, then messages; the last of them carries the bookmarks.

    Args:
        control: answers, as JSON.
        bodies: messages as JSON without the closing brace.
        bookmarks: the bookmark of each subscription that moved.
        rows: of each window, the number of records that match, in it or not.
    """
    parts = list(control)
    tail = f',"bookmarks":{to_json_line(dict(bookmarks))}' if bookmarks else ""
    tail += f',"rows":{to_json_line(dict(rows))}' if rows else ""
    if bodies:
        parts += [f"{body}}}" for body in bodies[:-1]]
        parts.append(f"{bodies[-1]}{tail}}}")
    elif tail:
        parts.append(f'{{"command":"heartbeat"{tail}}}')
    return parts[0] if len(parts) == 1 else f"[{','.join(parts)}]"


def _ids(sub_ids: tuple[str, ...]) -> str:
    text = _IDS.get(sub_ids)
    if text is None:
        if len(_IDS) > 10_000:
            _IDS.clear()
        text = _IDS[sub_ids] = to_json_line(list(sub_ids))
    return text


_IDS: Final[dict[tuple[str, ...], str]] = {}
