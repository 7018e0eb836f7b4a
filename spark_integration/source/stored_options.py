"""Keeps the options of a table in a catalog next to its columns, as Spark 4 passes only these to a Python data source.

`CREATE TABLE … USING sow OPTIONS (…)` asks for the columns with all options, but a later `SELECT` or `INSERT` brings
the columns alone. So the comment of the last column has the options; `DESCRIBE TABLE` shows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from spark_integration.source.source_options import is_sparks

_MARK: Final = "Sowstream "
_COMMENT: Final = "comment"
_CATALOG: Final = "provider"
"""The option that a statement for a catalog has, and a read without one has not."""
_SECRET: Final = re.compile(r"password|secret|token|jaas|\.key$|\.pem$|credential", re.IGNORECASE)


def comment_of(options: Mapping[str, str]) -> str | None:
    """The comment with the options, for a table in a catalog; None for a read without one.

    Raises:
        ConfigurationError: an option is a secret, which everyone who sees the table would read.
    """
    if _CATALOG not in options:
        return None
    own = {name: text for name, text in options.items() if not is_sparks(name)}
    if secret := [name for name in own if _SECRET.search(name)]:
        raise ConfigurationError(
            f"option {secret[0]!r} would be shown with the columns of the table; give credentials in section `kafka` "
            "of the settings, and name their file: config 'sowstream.yaml'"
        )
    return _MARK + json.dumps(own, sort_keys=True)


def all_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a statement, and those that its table's columns have."""
    for field in schema.fields:
        comment = field.metadata.get(_COMMENT, "")
        if comment.startswith(_MARK):
            stored: dict[str, str] = json.loads(comment[len(_MARK) :])
            return stored | dict(options)
    if not options:
        raise ConfigurationError(
            "this table has no options: CREATE TABLE with columns loses them; leave the columns out, and give option "
            "schema 'id LONG, name STRING'"
        )
    return dict(options)
