"""Holds partitions that cannot go on, and finds the record at fault.

`suspects` isolates the record on which a processor raises, `reject_limit` counts rejected records, `holds` schedules
retries, `held_tasks` publishes holds and carries out orders, and `rejection_log` writes the log lines.
"""
