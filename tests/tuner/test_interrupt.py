"""What the first and the second signal do, and which are left ignored."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.tiny_model import tiny_model
from tests.processes import python
from tunefarm.tuner.interrupt import SIGNALS, Interrupt, SignalHandler, interruptible


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def handlers_of_the_tests() -> Iterator[None]:
    """Signals are not ignored, as they are in a background job, and nothing stays."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    told: list[str] = []
    with interruptible() as interrupt:
        interrupt.add_listener(lambda: told.append("early"))
        assert not interrupt.asked
        signal.raise_signal(number)
        assert interrupt.asked and told == ["early"]
        interrupt.add_listener(lambda: told.append("late"))
        assert told == ["early", "late"]
        with pytest.raises(KeyboardInterrupt):
            interrupt.ask()
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_was_ignored_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with interruptible() as interrupt:
        signal.raise_signal(number)
        assert not interrupt.asked


def test_two_signals_at_once_are_one_request(clock: Clock) -> None:
    handler = SignalHandler(clock)
    with interruptible() as interrupt:
        handler.interrupt = interrupt
        handler(signal.SIGTERM, None)
        handler(signal.SIGCONT, None)
        assert interrupt.asked
        clock.now = 1.0
        with pytest.raises(KeyboardInterrupt):
            handler(signal.SIGTERM, None)
    assert handler.number == signal.SIGTERM


def test_cpu_time_that_goes_on_does_not_break_off_what_was_asked_to_stop(clock: Clock) -> None:
    handler = SignalHandler(clock)
    with interruptible() as interrupt:
        handler.interrupt = interrupt
        for _ in range(3):  # the kernel sends it every second
            handler(signal.SIGXCPU, None)
            clock.now += 1.0
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            handler(signal.SIGTERM, None)
    assert handler.number == signal.SIGXCPU


def test_what_cleans_up_is_not_broken_off(clock: Clock) -> None:
    handler = SignalHandler(clock)
    with pytest.raises(KeyboardInterrupt):
        handler(signal.SIGINT, None)
    clock.now = 10.0
    handler(signal.SIGINT, None)
    handler(signal.SIGTERM, None)
    assert handler.number == signal.SIGINT


SCRIPT = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
number, module = int(sys.argv[1]), sys.argv[2]

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            signal.raise_signal(number)

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["zoo", "mlp", "--output", "mlp.onnx"]
from tunefarm.tuner.commands.entry import main
main()
"""


@pytest.mark.parametrize(
    ("number", "module"),
    list(zip(SIGNALS, ["typer", "numpy", "onnx", "typer"], strict=True)),
)
def test_an_import_is_interrupted_in_one_line(
    number: signal.Signals, module: str, tmp_path: Path
) -> None:
    ran = python("-c", SCRIPT, str(int(number)), module, cwd=tmp_path)
    reason = ": the CPU time is used up (ulimit -t)" if number == signal.SIGXCPU else ""
    assert (ran.returncode, ran.stdout) == (128 + number, "")
    assert ran.stderr == f"interrupted{reason}\n"
    assert not list(tmp_path.iterdir())


THREADS = """
import os, sys
from tunefarm.tuner.commands.entry import main
from tunefarm.tuner.interrupt import signals_held

with signals_held():  # as the command does
    import tunefarm.measure.farm.make_runner

def look(*arguments, **options):
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            try:
                with open(f"/proc/self/task/{thread}/status") as status:
                    facts = dict(line.split(":", 1) for line in status)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended since
            if int(facts["Threads"]):  # the kernel counts none, and no mask, for one that is ending
                print(facts["SigBlk"])
    sys.stdout.flush()
    os._exit(0)

tunefarm.measure.farm.make_runner.create_runner = look
sys.argv[1:] = ["--model", "tiny.onnx", "--config", "ci"]
main()
"""


def test_no_other_thread_takes_a_signal_when_ray_starts(tmp_path: Path) -> None:
    onnx.save(tiny_model(), tmp_path / "tiny.onnx")
    ran = python("-c", THREADS, cwd=tmp_path, check=True)
    masks = [int(line, 16) for line in ran.stdout.split()]
    assert masks, ran.stderr  # one renews the lease
    assert all(mask >> (number - 1) & 1 for mask in masks for number in SIGNALS)


def test_within_at_once_the_first_signal_raises() -> None:
    interrupt = Interrupt()
    with pytest.raises(KeyboardInterrupt), interrupt.at_once():
        interrupt.ask()
    assert interrupt.asked


def test_behind_at_once_the_first_signal_asks() -> None:
    interrupt = Interrupt()
    with interrupt.at_once():
        pass
    interrupt.ask()
    assert interrupt.asked
