"""When keys are told, and how often: windows of updates that wait, without a clock and without Kafka.

Time is a parameter everywhere. What the updates are is somebody else's business: a window keeps them as they came, in
the order in which their keys began to wait, and gives them back when their interval is over.
"""

from processor.conflation.pace import Pace
from processor.conflation.touched import touched_header, touched_paths
from processor.conflation.window import Pending, Window

__all__ = ["Pace", "Pending", "Window", "touched_header", "touched_paths"]
