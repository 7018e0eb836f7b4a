"""Tests of plug-ins: `from sowstream.testing import ProcessorTestDriver`. It is module `processor.testing` itself."""

import sys
from typing import TYPE_CHECKING

from processor import testing

if TYPE_CHECKING:
    from processor.testing import *  # noqa: F403

sys.modules[__name__] = testing
