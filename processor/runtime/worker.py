"""A worker process: a stream thread for each pipeline, signals, and an end within a deadline."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog
from prometheus_client import start_http_server

from processor import allocator
from processor.codec import codec_of
from processor.errors import ConfigurationError, Stop
from processor.kafka.admin import Admin
from processor.log_setup import set_up_logging
from processor.plugins.plain_deltas import has_compiled
from processor.runtime.assembly import Assembly
from processor.runtime.pipeline import Pipeline, check_settings, needed, pipelines
from processor.runtime.slot import Slot
from processor.runtime.topic_check import check_topics
from processor.runtime.topic_watch import TopicWatch
from processor.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from processor.config import Config

log = structlog.stdlib.get_logger("sowstream.worker")

_WATCH_S = 0.2


def run_worker(config: Config, names: Sequence[str] = (), *, processes: int = 1) -> int:
    """Run pipelines until SIGTERM or SIGINT; the exit code.

    Args:
        config: the settings.
        names: which of the configured names; none: all.
        processes: how many processes share the work.

    Raises:
        ConfigurationError: settings or topics that cannot work; nothing was started.
        Stop: a pipeline could not go on.
    """
    chosen = pipelines(config, names)
    if not chosen:
        raise ConfigurationError("nothing to run: the settings name no topics (-c FILE, section `topics`)")
    check_settings(chosen, partial(codec_of, config))
    check_topics(config, chosen)
    if processes > 1:
        log.info("settings", **config.shown())
        return _run_processes(config, names, processes)
    worker = _Worker(config, chosen)
    by = "compiled code" if has_compiled else "Python"
    log.info("plain deltas of JSON are merged", by=by, memory_from=allocator.in_use())
    log.info("settings", **config.shown())  # Whoever has read this may send a signal.
    return worker.run()


class _Worker:
    """The threads of one process."""

    def __init__(self, config: Config, chosen: Sequence[Pipeline]) -> None:
        self._config = config
        self._stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._slot = Slot(config.state_dir)
        self._watchdog = Watchdog(config.runtime.stuck_after_s)
        self._assembly = Assembly(config, self._slot, is_stopping=self._stop.is_set, beat=self._watchdog.beat)
        self._error: BaseException | None = None
        self._watch = TopicWatch(Admin(config.kafka), needed(chosen), stop=self._stop, on_change=self._topics_changed)
        self._threads = [
            threading.Thread(target=self._run, args=(pipeline,), name=pipeline.name, daemon=True) for pipeline in chosen
        ]

    def run(self) -> int:
        """Run the threads until a signal comes, the parent dies or one of them ends with an error."""
        parent = os.getppid()
        self._serve_metrics()
        # What is alive now stays: the collector need not look at it again, nor run while records flow. Cycles are
        # made by exceptions only, and collected here twice a minute.
        gc.collect()
        gc.freeze()
        gc.disable()
        for thread in self._threads:
            thread.start()
        self._watch.start()
        collected_s = time.monotonic()
        while not self._stop.wait(_WATCH_S):
            self._watchdog.check()
            if multiprocessing.parent_process() is not None and os.getppid() != parent:
                log.warning("the parent process is gone; stopping")
                self._stop.set()
            if time.monotonic() - collected_s > 30.0:
                collected_s = time.monotonic()
                gc.collect()
        self._join()
        self._slot.release()
        if self._error is not None:
            raise self._error
        log.info("stopped")
        return 0

    def _serve_metrics(self) -> None:
        """Processes of one machine have metrics ports one after the other; port 0 is any free one."""
        first = self._config.runtime.metrics_port
        if first is None:
            return
        port = first + self._slot.number if first else 0
        try:
            start_http_server(port)
        except (OSError, OverflowError) as error:
            raise Stop(
                f"runtime.metrics_port {first}: process {self._slot.number} of this state_dir cannot serve metrics on "
                f"port {port} ({getattr(error, 'strerror', error)}); choose another one"
            ) from error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._stop.set()

    def _topics_changed(self, error: Stop) -> None:
        """What is merged is committed, for it came before; then the process ends."""
        log.error("stopping", error=str(error))
        if self._error is None:
            self._error = error
        self._stop.set()

    def _join(self) -> None:
        """Wait for the threads to commit and let go; by force after the deadline, which Kafka then rolls back."""
        deadline = time.monotonic() + self._config.runtime.shutdown_timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.error("not stopped in time; ending by force", thread=thread.name)
                os._exit(1)

    def _run(self, pipeline: Pipeline) -> None:
        """A thread's whole life; its first error ends the process."""
        self._watchdog.watch()
        try:
            self._assembly.thread(pipeline).run(self._stop)
        except BaseException as error:
            if self._error is None:
                self._error = error
            log.error(
                "pipeline stopped", pipeline=pipeline.name, error=str(error), exc_info=not isinstance(error, Stop)
            )
        finally:
            self._watchdog.release()
            self._stop.set()


def _run_child(config: Config, names: Sequence[str], verbose: bool) -> None:
    """A child process of `--processes`: a fresh interpreter, which nobody has told how to log."""
    set_up_logging(verbose=verbose, tells_process=True)
    try:
        raise SystemExit(_Worker(config, pipelines(config, names)).run())
    except Stop as error:
        log.error("cannot go on", error=str(error))
        raise SystemExit(1) from None


def _run_processes(config: Config, names: Sequence[str], processes: int) -> int:
    """Share the work between processes; if one fails, all stop, and whoever watches us starts us again."""
    spawn = multiprocessing.get_context("spawn")  # A fork would copy Kafka clients half alive.
    order = (config, list(names), log.isEnabledFor(logging.DEBUG))
    children = [spawn.Process(target=_run_child, args=order) for _ in range(processes)]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    for child in children:
        child.start()
    while not stop.wait(_WATCH_S) and all(child.is_alive() for child in children):
        pass
    for child in children:
        if child.is_alive():
            child.terminate()
        elif not stop.is_set():
            log.error("a process ended by itself; stopping the others", pid=child.pid, exit_code=child.exitcode)
    deadline = time.monotonic() + config.runtime.shutdown_timeout_s + 5.0
    for child in children:
        child.join(max(0.1, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()
    return 0 if all(child.exitcode == 0 for child in children) else 1
