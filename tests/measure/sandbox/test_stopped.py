"""A driver and its worker that are stopped for longer than a candidate may take, as by a lid."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from tests.measure.fault_kernels import COMPILE_FAULT, compile_fault, make_request
from tunefarm.compiler.target import host_target
from tunefarm.measure.measurement import Status
from tunefarm.measure.sandbox.worker_settings import WorkerSettings
from tunefarm.measure.worker.build_candidate import build_candidate
from tunefarm.measure.worker.supervisor import MEASURE, Supervisor

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["tests.measure.fault_kernels", "tunefarm.measure.worker.supervisor"]
)
LIMIT = 3.0
STOPPED = 3.5


def measure(scratch: str, connection: Connection) -> None:
    """Measure a candidate that sleeps; tell when it is asked for, and what came of it."""
    settings = WorkerSettings(
        cores=(max(os.sched_getaffinity(0)),),
        threads=1,
        target=host_target().to_json(),
        scratch=scratch,
        compile=COMPILE_FAULT,
    )
    supervisor = Supervisor(settings, MEASURE)
    supervisor.start()
    request = make_request("sleep 10000", options={"run_timeout": LIMIT})
    build = build_candidate(request, host_target(), compile_fault)
    connection.send(supervisor.pid)
    connection.send(supervisor.measure(request, build).status)
    supervisor.close()
    supervisor.stop()


def test_no_candidate_is_late_because_all_were_stopped(tmp_path: Path) -> None:
    ours, theirs = _CONTEXT.Pipe()
    driver = _CONTEXT.Process(target=measure, args=(str(tmp_path), theirs))
    driver.start()
    assert ours.poll(120.0)
    worker = ours.recv()
    assert driver.pid is not None
    try:
        os.kill(worker, signal.SIGSTOP)
        os.kill(driver.pid, signal.SIGSTOP)
        threading.Event().wait(STOPPED)  # time itself is what is tested
    finally:
        os.kill(driver.pid, signal.SIGCONT)
        os.kill(worker, signal.SIGCONT)
    assert ours.poll(120.0)
    assert ours.recv() is Status.OK
    driver.join(60.0)
