"""A night simulated: a queue on a farm of this machine, whose driver, disk and nodes fail.

    python -m tests.benchmarks.night                 four models, one and two threads, 12 minutes
    python -m tests.benchmarks.night --minutes 30    a longer one: turns are less crowded
    python -m tests.benchmarks.night --small         two models, local, two kills: 3 minutes

Three times the driver is killed (twice the runner of the queue, once the job of a turn), once the
disk is full, two nodes are lost and one joins. The disk is a small tmpfs, which only root may
mount; else this fault is left out, and said so. It prints a row for each thing that must hold and
exits with 1 if one does not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import onnx

from tests.end_to_end.tiny_model import tiny_model
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.check import check
from tunefarm.db.queue import entries
from tunefarm.db.records import LOST_TO_NOISE, TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.tuner.queues.queue_runner import TIME_OVER
from tunefarm.tuner.search.tasks import AGAIN_SHARE

ROOT = Path(__file__).resolve().parents[2]
OFF = 0.03  # of the night, that its end may be off the deadline; before it, if there is work left
DISK_MEGABYTES = 64
FULL_SHARE = 0.05  # of the night, for which the disk is full
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}


@dataclass
class NightOnFarm:
    """The queue's runner and what is done to it. `url` is the database's file on its own disk."""

    folder: Path
    disk: Path
    is_small_disk: bool
    minutes: float
    cluster: Any = None
    runner: subprocess.Popen[str] | None = None
    deadline: float = 0.0
    seen: set[str] = field(default_factory=set)  # acknowledged trials, as read now and then
    told: list[str] = field(default_factory=list)
    kills: int = 0
    full_seconds: float = 0.0

    @property
    def db(self) -> Path:
        return self.disk / "tuning.db"

    def tune(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tunefarm.tuner.commands.entry", *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{arguments}: {done.stderr}")
        return done.stdout

    def start(self) -> None:
        """Start the runner of the queue, or another one after the last was killed."""
        until = datetime.fromtimestamp(self.deadline, UTC).isoformat()
        files = ["--json", str(self.folder / "night.json")]
        arguments = ["jobs", "run", "--db", str(self.db), "--until", until, *files]
        log = (self.folder / "night.log").open("a")
        with log:
            self.runner = subprocess.Popen(
                [sys.executable, "-m", "tunefarm.tuner.commands.entry", *arguments],
                cwd=self.folder,
                env=_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def look(self) -> None:
        """Note which trials are recorded: none of them may be gone later."""
        with (
            suppress(DatabaseError),
            Store.open(self.db, read_only=True, check_rows=False) as store,
        ):
            self.seen |= {record.request_id for record in queries.iterate_trials(store)}

    def kill_runner(self) -> None:
        assert self.runner is not None
        self.look()
        self.runner.kill()
        self.runner.wait()
        self.kills += 1
        self.say("the runner is killed and started again")
        self.start()

    def kill_job(self) -> None:
        """Kill the process of a turn, once it has begun to work."""
        assert self.runner is not None
        self.look()
        end = time.time() + 30.0
        while time.time() < end:
            children = Path(f"/proc/{self.runner.pid}/task/{self.runner.pid}/children")
            for pid in children.read_text().split():
                with suppress(OSError):
                    if b"tunefarm.tuner.commands.turn" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(int(pid), signal.SIGKILL)
                        self.kills += 1
                        self.say("the job of a turn is killed")
                        return
            time.sleep(0.2)
        self.say("no turn was found to kill")

    def fill_disk(self) -> None:
        if not self.is_small_disk:
            self.say("the disk is not ours to fill: left out")
            return
        self.look()
        begin = time.monotonic()
        with (self.disk / "full").open("wb") as file, suppress(OSError):
            while file.write(bytes(1 << 16)):
                file.flush()
        self.say("the disk is full")
        time.sleep(FULL_SHARE * 60.0 * self.minutes)
        (self.disk / "full").unlink()
        self.full_seconds = time.monotonic() - begin
        self.say(f"the disk has space again, after {self.full_seconds:.0f} s")

    def lose_node(self) -> None:
        if self.cluster is not None:
            self.cluster.remove_node(self.cluster.list_all_nodes()[-1], allow_graceful=False)
            self.say("a node is lost")

    def join_node(self) -> None:
        if self.cluster is not None:
            self.cluster.add_node(**NODE)
            self.say("a node has joined")

    def say(self, text: str) -> None:
        left = self.deadline - time.time()
        self.told.append(f"{left:6.0f} s before the deadline: {text}")
        print(self.told[-1], file=sys.stderr, flush=True)


def run(
    night: NightOnFarm, plan: list[tuple[float, Callable[[], None]]]
) -> list[tuple[str, str, bool]]:
    """The night with its faults, each at a share of its time; what was seen, and does it hold."""
    begin = time.time()
    night.deadline = begin + 60.0 * night.minutes
    night.start()
    for share, fault in plan:
        time.sleep(max(0.0, begin + share * 60.0 * night.minutes - time.time()))
        fault()
    assert night.runner is not None
    try:
        table, _ = night.runner.communicate(timeout=max(60.0, night.deadline - time.time()) + 120.0)
    finally:
        night.runner.kill()
    off = time.time() - night.deadline
    print(table)
    return judge(night, off, night.runner.returncode)


def judge(night: NightOnFarm, off: float, status: int) -> list[tuple[str, str, bool]]:
    share = off / (60.0 * night.minutes)
    with Store.open(night.db) as store:
        queue, jobs = entries(store), queries.jobs(store)
        trials = list(queries.iterate_trials(store))
        problems = check(store)
    nothing_left = all(item.options["ended"] not in ("", TIME_OVER) for item in queue)
    on_time = share <= OFF and (share >= -OFF or nothing_left)
    early = ", nothing was left to do" if nothing_left else ""
    rows = [("end, off the deadline", f"{off:+.1f} s, {100 * share:+.1f} %{early}", on_time)]
    states = Counter(item.state for item in queue)
    rows.append(("exit status", str(status), status == 0))
    rows.append(("entries", _counts(states), set(states) == {"finished"}))
    closed = Counter(job.state for job in jobs)
    rows.append(("jobs", _counts(closed), closed["running"] == 0 and closed["lost"] <= night.kills))
    confirmed = sum(any(turn["ratio"] for turn in item.options["turns"]) for item in queue)
    rows.append(
        ("entries whose whole model was confirmed", str(confirmed), confirmed == len(queue))
    )
    requests = Counter(trial.request_id for trial in trials)
    gone = night.seen - requests.keys()
    rows.append(
        ("trials noted before faults, and gone", f"{len(gone)} of {len(night.seen)}", not gone)
    )
    measured = Counter((trial.key, trial.schedule_hash, trial.request_id) for trial in trials)
    twice = sum(count > 1 for count in measured.values())
    rows.append((f"of {len(trials)} trials recorded twice", str(twice), twice == 0))
    again, accidents, count = _measured_again(trials)
    rows.append((f"of {count} schedules known, measured anew", str(accidents), accidents == 0))
    share = again / max(1, count)
    rows.append(("schedules measured again to know them better", f"{again}", share <= AGAIN_SHARE))
    rows.append(("damaged records", str(len(problems)), not problems))
    summary = json.loads((night.folder / "night.json").read_text())
    rows.append(
        (
            "entries in the summary",
            str(len(summary["entries"])),
            len(summary["entries"]) == len(queue),
        )
    )
    return rows


def _measured_again(trials: list[TrialRecord]) -> tuple[int, int, int]:
    """How many schedules a search has measured in a second job because they are worth knowing
    better, how many without having to, and how many schedules there are.

    What is worth knowing better has a latency and is among the fastest half of its kernel.
    """
    first: dict[tuple[TaskKey, str], TrialRecord] = {}
    times: dict[TaskKey, list[float]] = {}
    for trial in trials:
        if trial.conditions.get("confirmed") or trial.status == "infrastructure":
            continue
        first.setdefault((trial.key, trial.schedule_hash), trial)
        if trial.latency is not None:
            times.setdefault(trial.key, []).append(trial.latency)
    again = accidents = 0
    for trial in trials:
        former = first.get((trial.key, trial.schedule_hash))
        if former is None or former.job == trial.job or trial.conditions.get("confirmed"):
            continue
        if trial.status == "infrastructure":
            continue
        latency = former.latency
        is_worth = latency is not None and latency <= 1.1 * median(times[trial.key])
        again += is_worth
        accidents += not is_worth and former.status not in LOST_TO_NOISE
    return again, accidents, len(first)


def _counts(counts: Counter[Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of its own at the folder, if this user may mount one."""
    folder.mkdir()
    size = f"size={DISK_MEGABYTES}m"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


def _environment() -> dict[str, str]:
    """Of processes in other folders."""
    return {**os.environ, "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def farm() -> Iterator[Any]:
    """A cluster of three nodes on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ |= _environment()
    cluster: Any = Cluster()
    try:
        for _ in range(3):
            cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()


def prepare(night: NightOnFarm, models: list[str], threads: list[int], *options: str) -> None:
    """Models and the queue. `twin` has all its kernels in common with `mlp`."""
    night.tune("zoo", "mlp", "--output", "mlp.onnx")
    shutil.copy(night.folder / "mlp.onnx", night.folder / "twin.onnx")
    onnx.save(tiny_model(), night.folder / "tiny.onnx")
    onnx.save(tiny_model(4), night.folder / "batch.onnx")
    named = [word for model in models for word in ("--model", f"{model}.onnx")]
    counts = [word for count in threads for word in ("--threads", str(count))]
    print(night.tune("jobs", "add", *named, *counts, *options, "--db", str(night.db)))


def simulate(minutes: float, *, small: bool) -> list[tuple[str, str, bool]]:
    """The whole night; what was seen, and whether it is as it must be."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="night-")))
        disk = folder / "disk"
        is_small = stack.enter_context(small_disk(disk))
        night = NightOnFarm(folder, disk, is_small, minutes)
        if small:
            prepare(night, ["mlp", "twin"], [1], "--runner", "local")
            kills = [(0.2, night.kill_runner), (0.4, night.fill_disk), (0.6, night.kill_job)]
            return run(night, kills)
        night.cluster = stack.enter_context(farm())
        address = ["--address", night.cluster.address]
        prepare(night, ["mlp", "twin", "tiny", "batch"], [1, 2], *address)
        return run(
            night,
            [
                (0.10, night.kill_runner),
                (0.22, night.fill_disk),
                (0.35, night.kill_job),
                (0.45, night.lose_node),
                (0.55, night.join_node),
                (0.65, night.lose_node),
                (0.75, night.kill_runner),
            ],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, help="of the night [default: 12, small: 3]")
    parser.add_argument("--small", action="store_true", help="two models, no cluster")
    options = parser.parse_args()
    minutes = options.minutes or (3.0 if options.small else 12.0)
    rows = simulate(minutes, small=options.small)
    width = max(len(name) for name, _, _ in rows)
    for name, found, holds in rows:
        print(f"{name:{width}}  {found:24}  {'ok' if holds else 'NOT AS IT MUST BE'}")
    sys.exit(0 if all(holds for _, _, holds in rows) else 1)


if __name__ == "__main__":
    main()
