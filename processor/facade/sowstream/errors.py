"""The errors, ordered by their consequence: `from sowstream.errors import VersionConflict`."""

import sys
from typing import TYPE_CHECKING

from processor import errors

if TYPE_CHECKING:
    from processor.errors import *  # noqa: F403

sys.modules[__name__] = errors
