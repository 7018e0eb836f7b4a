"""The contract of plug-ins: `from sowstream.api import RecordProcessor`. It is module `processor.api` itself."""

import sys
from typing import TYPE_CHECKING

from processor import api

if TYPE_CHECKING:
    from processor.api import *  # noqa: F403

sys.modules[__name__] = api
