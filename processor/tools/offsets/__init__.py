"""Where a topic's workers stand in their input, and how an operator says where they are to begin.

`stand` reads what the group, the mark topic and the input topic say; `adopt` decides on new offsets and writes them.
"""

from processor.tools.offsets.adopt import Adoption, Origin
from processor.tools.offsets.stand import COLUMNS, PartitionStand, Stand, as_row

__all__ = ["COLUMNS", "Adoption", "Origin", "PartitionStand", "Stand", "as_row"]
