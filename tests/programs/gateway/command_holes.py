"""Mistakes that the checks of commands could have, to be made in a running product."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from processor.errors import SowstreamError, VersionConflict
from processor.filter import compile_filter
from processor.gateway.access.entitlements import Entitlements
from processor.gateway.commands.checked_commands import CheckedCommands
from processor.gateway.commands.command_check import CommandCheck, CurrentRecord
from processor.gateway.commands.publishing import Publishing
from processor.subscriptions.request.entitlement import Entitlement


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Replace an attribute; returns the way back."""
    old = owner.__dict__[name]
    setattr(owner, name, value)
    return lambda: setattr(owner, name, old)


def holes() -> dict[str, Callable[[], Callable[[], None]]]:
    """Mistakes that the product could have: each is made by a call, which returns the way back."""
    decide, combined = CommandCheck.decide, Entitlements._combined
    message, publish, before = CommandCheck._check_message, Publishing.publish, CommandCheck._check_before
    depends = CommandCheck.depends_on_record

    def unconditional(self: Any, *arguments: Any) -> Any:
        return decide(self, *arguments)._replace(version=None)

    def telling(self: Any, user: Any, rights: Any, command: Any, current: Any) -> Any:
        try:
            return decide(self, user, rights, command, current)
        except VersionConflict as error:
            raise VersionConflict(f"the record has version {current.version}", current.version) from error

    def other_text(self: Any, *arguments: Any, **more: Any) -> None:
        try:
            before(self, *arguments, **more)
        except SowstreamError as error:
            error.args = ("someone may not publish: the record is another desk's",)
            raise

    async def everything(self: Any, identity: Any, topic: str, text: str) -> Any:

        feed, asked = self._feeds[topic], compile_filter(text)
        keys = [one.key.decode() for one in feed.engine._records._view.scan() if asked.matches(json.loads(one.value))]
        self._checks[topic].depends_on_record = lambda *_a, **_k: False
        return None, keys

    async def websocket_as_root(self: Any, identity: Any, op: str, topic: str, fields: Any, **more: Any) -> None:
        if more["client"] != "http":
            identity = identity._replace(roles=("all",))
        await publish(self, identity, op, topic, fields, **more)

    async def http_as_root(self: Any, identity: Any, op: str, topic: str, fields: Any, **more: Any) -> None:
        if more["client"] == "http":
            identity = identity._replace(roles=("all",))
        await publish(self, identity, op, topic, fields, **more)

    def deletes_unchecked(rights: Any, op: str, *, is_conditional: bool) -> bool:
        return op != "sow_delete" and depends(rights, op, is_conditional=is_conditional)

    def conditions_unchecked(rights: Any, op: str, *, is_conditional: bool) -> bool:
        return depends(rights, op, is_conditional=False)

    return {
        "the record before is not looked at": lambda: _set(CommandCheck, "_check_before", lambda *a, **k: None),
        "the record after is not looked at": lambda: _set(
            CommandCheck, "_check_message", lambda s, u, r, c, n: message(s, u, r._replace(publish=None), c, n)
        ),
        "hidden fields can be written": lambda: _set(Entitlement, "may_write", lambda *a, **k: True),
        "every record counts as visible": lambda: _set(
            CurrentRecord, "is_visible", lambda self, read: read is not None and self.value is not None
        ),
        "no condition is sent": lambda: _set(CommandCheck, "decide", unconditional),
        "a conflict tells the hidden version": lambda: _set(CommandCheck, "decide", telling),
        "another text for a hidden record": lambda: _set(CommandCheck, "_check_before", other_text),
        "deletes are not checked": lambda: _set(CommandCheck, "depends_on_record", staticmethod(deletes_unchecked)),
        "conditions are left to the worker": lambda: _set(
            CommandCheck, "depends_on_record", staticmethod(conditions_unchecked)
        ),
        "rights to delete and publish are not checked": lambda: _set(CommandCheck, "check_rights", lambda *a: None),
        "the filter of publish is lost": lambda: _set(
            Entitlements, "_combined", lambda s, *a: combined(s, *a)._replace(publish=None)
        ),
        "the select list is lost": lambda: _set(
            Entitlements, "_combined", lambda s, *a: _without_select(combined(s, *a))
        ),
        "a delete by filter finds hidden records": lambda: _set(CheckedCommands, "_selected", everything),
        "WebSockets have all rights": lambda: _set(Publishing, "publish", websocket_as_root),
        "HTTP has all rights": lambda: _set(Publishing, "publish", http_as_root),
    }


def _without_select(rights: Any) -> Any:

    return rights if rights.read is None else rights._replace(read=Entitlement(rights.read.filter, None))
