"""The health of a worker process: `task_reports` collects it, `health` judges it, and `pages` serves it."""
