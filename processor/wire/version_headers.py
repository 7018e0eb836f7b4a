"""The headers of most records: their version, and nothing else."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from processor.api import Name

if TYPE_CHECKING:
    from processor.api import Headers

VERSIONS_MAX: Final = 4096
"""Header lists are kept for versions below this; a key that is updated more often pays for its own."""


@functools.cache
def version_headers() -> list[Headers]:
    """The list of each version: made once and never changed."""
    return [[(Name.VERSION, b"%d" % version)] for version in range(VERSIONS_MAX)]
