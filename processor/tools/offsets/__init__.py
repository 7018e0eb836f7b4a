"""Shows the input positions of a topic's workers, and sets new ones on an operator's order.

`stand` reads the offsets of the group, the mark topic and the input topic; `adopt` decides on new offsets and writes
them.
"""

from processor.tools.offsets.adopt import Adoption, Origin
from processor.tools.offsets.stand import COLUMNS, PartitionStand, Stand, as_row

__all__ = ["COLUMNS", "Adoption", "Origin", "PartitionStand", "Stand", "as_row"]
