"""The fingerprint of a view's definition, kept with each stage: a changed definition is noticed at the start."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from processor.builtin.view.definitions import view_name
from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from processor.api import Context
    from processor.config import ViewConfig

_MARK: Final = b"definition"
_PARTS: Final = frozenset(("underlying", "filter", "group_by", "join", "join_method", "fields", "having", "partitions"))


def fingerprint(settings: ViewConfig) -> bytes:
    """Return a short text that two equal definitions share, and no others."""
    parts = settings.model_dump(mode="json", include=set(_PARTS))
    if settings.partial_aggregation:  # Other views keep the fingerprint that they had before there was this setting.
        parts["partial_aggregation"] = True
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32].encode()


def check_fingerprint(context: Context, settings: ViewConfig) -> None:
    """Note the definition of a new view, and refuse one that is not that of the view's rows.

    Raises:
        ConfigurationError: with the choice.
    """
    known, current = context.marks.get(_MARK), fingerprint(settings)
    if known is None:
        context.marks.put(_MARK, current)
    elif known != current:
        name = view_name(context.name)
        raise ConfigurationError(
            f"views.{name}: its definition has changed, and its rows are those of the former one; set it back, or stop "
            f"its workers and run `sowstream view rebuild {name}`, which deletes the rows and builds them again"
        )
