"""The display of the demo: the figures to show, the live view and the final report."""
