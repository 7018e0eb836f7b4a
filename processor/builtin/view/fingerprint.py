"""The fingerprint of a view's definition, kept with each stage: a changed definition is noticed at the start."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from processor.builtin.view.definitions import view_name
from processor.errors import ConfigurationError
from processor.values.key_text import KEY_VERSION

if TYPE_CHECKING:
    from processor.api import Context
    from processor.config import ViewConfig

_MARK: Final = b"definition"
_PARTS: Final = frozenset(("underlying", "filter", "group_by", "join", "join_method", "fields", "having", "partitions"))


def fingerprint(settings: ViewConfig, *, keys_version: int = KEY_VERSION) -> bytes:
    """Return a short text that two equal definitions share, and no others.

    Args:
        settings: the definition.
        keys_version: the version of the law by which grouping values and join keys make keys.
    """
    parts = settings.model_dump(mode="json", include=set(_PARTS))
    if settings.partial_aggregation:  # Other views keep the fingerprint that they had before there was this setting.
        parts["partial_aggregation"] = True
    # Records that meet by their own keys make no others, and neither does a view whose records are all one group.
    if keys_version > 1 and (settings.group_by or settings.join_method in {"repartition", "broadcast"}):
        parts["keys"] = keys_version
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
        if known == fingerprint(settings, keys_version=1):
            raise ConfigurationError(
                f"views.{name}: an older version of Sowstream wrote its rows, for which 1 and 1.0 were two values and "
                f'1 and "1" were one; stop its workers and run `sowstream view rebuild {name}`, which deletes the rows '
                "and builds them again"
            )
        raise ConfigurationError(
            f"views.{name}: its definition has changed, and its rows are those of the former one; set it back, or stop "
            f"its workers and run `sowstream view rebuild {name}`, which deletes the rows and builds them again"
        )
