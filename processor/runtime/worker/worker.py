"""Runs a worker process: a thread for each pipeline, signal handling, and an end within a deadline."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import structlog

from processor import __version__
from processor.codec import codec_of
from processor.errors import ConfigurationError, DefinitionChanged, Stop, TopicFenced
from processor.hosting.pipeline import Pipeline, check_settings, needed
from processor.installation.configured_pipelines import pipelines
from processor.installation.control_thread import ControlThread
from processor.installation.hold import Hold
from processor.installation.topic_check import check_topics
from processor.installation.view_aggregation import with_aggregation
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import GroupInspector
from processor.runtime.loop.clients import RetentionHeadroom, WaitingRecords
from processor.runtime.loop.task_reports import PipelineReport
from processor.runtime.loop.watchdog import Stuck, Watchdog
from processor.runtime.metrics import show_process
from processor.runtime.worker import os_process
from processor.runtime.worker.assembly import Assembly
from processor.runtime.worker.fenced_pipelines import FencedPipelines
from processor.runtime.worker.health import Health, serve
from processor.runtime.worker.logging_setup import set_up_logging
from processor.runtime.worker.os_process import stop_on_signal
from processor.runtime.worker.supervision import Supervised
from processor.runtime.worker.watcher import INTERVAL_S, BacklogWatch, Job, TopicMonitor, WatchedPipeline, Watcher
from processor.runtime.worker.worker_identity import ProcessSlot, RivalWatch
from processor.telemetry.metrics import metrics_export

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from processor.config import Config

log = structlog.stdlib.get_logger("sowstream.worker")

_WATCH_S = 0.2
_STOP_OTHERS_S = 5.0


def run_worker(config: Config, names: Sequence[str] = (), *, stop: threading.Event, processes: int = 1) -> int:
    """Run pipelines until `stop` is set; returns the exit code.

    A pipeline that fails is restarted after a pause, and the others go on. While Kafka does not answer, all of them
    wait.

    Args:
        config: the settings.
        names: the pipelines to run, by configured name; none: all.
        stop: set by a signal (`signals.stop_on_signal`).
        processes: how many processes share the work.

    Raises:
        ConfigurationError: settings or topics are invalid; nothing was started.
        Stop: every pipeline has failed.
    """
    chosen = pipelines(config, names)
    if not chosen:
        raise ConfigurationError("nothing to run: the settings name no topics (-c FILE, section `topics`)")
    check_settings(chosen)
    if processes > 1:
        _log_settings(config)
        return _run_processes(config, names, processes, stop)
    return _run_here(config, chosen, stop)


def _run_here(config: Config, chosen: Sequence[Pipeline], stop: threading.Event) -> int:
    """Run pipelines in this process."""
    os_process.return_large_blocks()
    worker = _Worker(config, chosen, stop)
    log.info("processors", runs=_implementations(chosen), memory_from=os_process.in_use())
    _log_settings(config)  # Logged last: after this line the worker handles signals.
    return worker.run()


def _log_settings(config: Config) -> None:
    """Log all settings; on a terminal only those that differ from the defaults, which fill a screen."""
    log.info("settings", **config.shown(changed_only=sys.stderr.isatty()))


def _implementations(chosen: Sequence[Pipeline]) -> dict[str, str]:
    """List the processor classes, each with the optional class attribute `implementation`, such as compiled code."""
    types = {pipeline.processor_type for pipeline in chosen}
    return {each.__name__: str(getattr(each, "implementation", "Python")) for each in types}


class _Worker:
    """The threads of one process."""

    def __init__(self, config: Config, chosen: Sequence[Pipeline], stop: threading.Event) -> None:
        self._config = config
        self._stop = stop
        self._exports = metrics_export(config.telemetry)
        self._slot = ProcessSlot(config.state_dir)
        self._watchdog = Watchdog(config.runtime.stuck_after_s, call_limit_s=config.runtime.call_stuck_after_s)
        self._control = ControlThread(config.kafka, config.application_id, config.topic_prefix, process=self._slot.name)
        self._fenced_pipelines = FencedPipelines(config, self._control)
        self._running: dict[str, Pipeline] = {}
        admin = Admin(config.kafka, awaits_names=True)
        headroom = RetentionHeadroom()
        self._reports = {pipeline.name: PipelineReport() for pipeline in chosen}
        backlogs = {pipeline.name: WaitingRecords() for pipeline in chosen}
        self._assembly = Assembly(
            config,
            self._slot,
            admin=admin,
            control=self._control,
            beat=self._watchdog.beat,
            headroom=headroom,
            reports=self._reports,
            backlogs=backlogs,
            consumers=len(chosen),
            fenced=self._fenced_pipelines.refusal,
        )
        self._pipelines = [
            Supervised(
                pipeline,
                self._run_once,
                orders=self._control.orders(pipeline.name),
                report_failure=self._control.report_failure,
            )
            for pipeline in chosen
        ]
        self._health = Health(self._slot.name, self._pipelines, self._reports)
        self._watcher = Watcher(self._jobs(admin, headroom, backlogs), stop)

    def _jobs(self, admin: Admin, headroom: RetentionHeadroom, backlogs: Mapping[str, WaitingRecords]) -> list[Job]:
        """Make the periodic jobs of the process."""
        config, chosen = self._config, [one.pipeline for one in self._pipelines]
        groups = {pipeline.name: f"{config.group_prefix}.{pipeline.name}" for pipeline in chosen}
        topics = TopicMonitor(admin, needed(chosen), on_change=self._topics_changed, headroom=headroom)
        backlog = BacklogWatch(
            admin,
            GroupInspector(config.kafka),
            [
                WatchedPipeline(
                    groups[one.name],
                    one.source,
                    one.output("dlq"),
                    config.letters_group(one.name),
                    self._reports[one.name],
                    backlogs[one.name],
                )
                for one in chosen
            ],
        )
        rivals = RivalWatch(
            admin,
            [(groups[pipeline.name], pipeline.source) for pipeline in chosen],
            session_timeout_s=config.runtime.session_timeout_s,
        )
        return [
            Job("topics", topics.run),
            Job("former states", self._assembly.cleaner.run),
            Job("backlog", backlog.run, first_s=INTERVAL_S),
            Job("rivals", rivals.run, first_s=rivals.pause_s),
        ]

    def run(self) -> int:
        """Run the threads until a signal arrives, the parent process dies or every pipeline has failed."""
        parent = os.getppid()
        self._serve_pages()
        if self._exports is not None:
            self._exports.start()
        # Objects alive now stay alive: the collector need not visit them again, nor run while records flow. Only
        # exceptions create cycles, which are collected here twice a minute.
        gc.collect()
        gc.freeze()
        gc.disable()
        self._control.start()
        for pipeline in self._pipelines:
            pipeline.thread.start()
        threading.Thread(target=self._watcher.run, name="watcher", daemon=True).start()
        collected_s = time.monotonic()
        while not self._stop.wait(_WATCH_S) and not all(pipeline.has_failed for pipeline in self._pipelines):
            self._watchdog.check(self._hold_stuck)
            self._health.turned()
            self._apply_fences()
            self._end_refused_views()
            if multiprocessing.parent_process() is not None and os.getppid() != parent:
                log.warning("the parent process is gone; stopping")
                break
            if time.monotonic() - collected_s > 30.0:
                collected_s = time.monotonic()
                gc.collect()
        failed = [pipeline.error for pipeline in self._pipelines if pipeline.has_failed]
        self._end()
        if len(failed) == len(self._pipelines):
            raise failed[0] or Stop("no pipeline can go on")
        log.info("stopped")
        return 0

    def _hold_stuck(self, stuck: Stuck) -> None:
        """Publish that the partition of a call that does not return is held, and stop the other pipelines in order."""
        if (call := stuck.call) is None:
            return
        now_ms = int(time.time() * 1000)
        message = (
            f"{call.pipeline} partition {call.partition}: the processor's call with offset {call.offset} (up to "
            f"{call.last}) did not return for {stuck.seconds:.0f} s, and its process was ended"
        )
        self._control.report(
            call.pipeline, call.partition, Hold("stuck", message, call.offset, now_ms, 0, time.monotonic())
        )
        others = [pipeline for pipeline in self._pipelines if pipeline.pipeline.name != call.pipeline]
        self._stop.set()
        for pipeline in others:
            pipeline.stop()
        deadline = time.monotonic() + _STOP_OTHERS_S
        for pipeline in others:
            pipeline.has_ended(by_s=deadline)
        self._control.stop()

    def _serve_pages(self) -> None:
        """Serve metrics and health on the first port plus the number of the process; port 0 is any free one."""
        show_process(__version__, self._config.state_dir)
        first = self._config.runtime.metrics_port
        if first is None:
            return
        port = first + self._slot.number if first else 0
        try:
            serve(port, self._health, host=self._config.runtime.metrics_host)
        except (OSError, OverflowError) as error:
            raise Stop(
                f"runtime.metrics_port {first}: process {self._slot.number} of this state_dir cannot serve metrics on "
                f"port {port} ({getattr(error, 'strerror', error)}); choose another one"
            ) from error

    def _apply_fences(self) -> None:
        """End the pipelines that are to wait or to run otherwise, after a commit of the records processed before."""
        for pipeline in self._pipelines:
            try:
                place = self._fenced_pipelines.of(pipeline.pipeline)
            except Stop as error:
                pipeline.fail(error)
                continue
            name = pipeline.pipeline.name
            if place is not (running := self._running.get(name, place)) and place != running:
                pipeline.fail(TopicFenced(f"{name}: its fence has changed"))

    def _end_refused_views(self) -> None:
        """End all stages of a view of which one was refused: the others may restore for long before they are."""
        for refused in self._pipelines:
            if isinstance(refused.error, DefinitionChanged):
                for pipeline in self._pipelines:
                    if pipeline.pipeline.settings is refused.pipeline.settings:
                        pipeline.fail(refused.error)

    def _topics_changed(self, error: Stop, topics: Collection[str]) -> None:
        """End the pipelines of these topics, after a commit of the records merged before."""
        for pipeline in self._pipelines:
            if not topics or any(spec.name in topics for spec in needed([pipeline.pipeline])):
                pipeline.fail(error)

    def _end(self) -> None:
        """Wait for the threads to commit and release their partitions; after the deadline end the process."""
        self._health.stopping()
        self._stop.set()
        for pipeline in self._pipelines:
            pipeline.stop()
        deadline = time.monotonic() + self._config.runtime.shutdown_timeout_s
        for pipeline in self._pipelines:
            if not pipeline.has_ended(by_s=deadline):
                log.error("not stopped in time; ending by force", thread=pipeline.thread.name)
                os._exit(1)
        self._control.stop()
        if self._exports is not None:
            self._exports.stop()
        self._slot.release()

    def _run_once(self, pipeline: Pipeline, stop: threading.Event, is_running: Callable[[], None]) -> None:
        """Check a pipeline and its topics, then run it until its event is set."""
        # First without a wait: while it must not run, this is tried again each second.
        place = self._fenced_pipelines.of(pipeline) if self._control.has_looked else pipeline
        check_settings([place], partial(codec_of, self._config))
        check_topics(self._config, [place])
        self._control.await_fences()
        pipeline = self._running[pipeline.name] = self._fenced_pipelines.of(pipeline)
        pipeline = with_aggregation(self._config, pipeline)
        self._watchdog.watch()
        self._reports[pipeline.name].clear()
        try:
            thread = self._assembly.thread(pipeline, stop.is_set)
            self._watchdog.watch_call(thread.call)
            is_running()
            thread.run(stop)
        finally:
            self._watchdog.release()


def _run_child(config: Config, names: Sequence[str], verbose: bool) -> None:
    """Run a child process of `--processes`: a fresh interpreter, in which logging is not yet set up."""
    stop = stop_on_signal()
    set_up_logging(verbose=verbose, tells_process=True)
    try:
        raise SystemExit(_run_here(config, pipelines(config, names), stop))
    except Stop as error:
        log.error("cannot go on", error=str(error))
        raise SystemExit(2 if isinstance(error, ConfigurationError) else 1) from None


def _run_processes(config: Config, names: Sequence[str], processes: int, stop: threading.Event) -> int:
    """Share the work between processes; if one ends, all stop, for the service manager to restart them."""
    spawn = multiprocessing.get_context("spawn")  # A fork would copy Kafka clients half alive.
    order = (config, list(names), log.isEnabledFor(logging.DEBUG))
    children = [spawn.Process(target=_run_child, args=order) for _ in range(processes)]
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
    codes = {child.exitcode for child in children}
    return 2 if 2 in codes else int(codes != {0})
