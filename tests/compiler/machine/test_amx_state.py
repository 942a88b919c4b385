"""Matrix tiles: what the CPU, the kernel and a trial have to say before a process may use them."""

from __future__ import annotations

import errno
import platform
import signal
import sys
from dataclasses import dataclass, field, replace

import pytest

from tunefarm.compiler.machine.amx_set_up import FULL_PALETTE, TilePalette
from tunefarm.compiler.machine.amx_state import HostMachine, Trial, tile_problem
from tunefarm.compiler.target import host_target

on_linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="matrix tiles are asked for on Linux on x86-64",
)
_LEAVES = {
    (1, 0): (0, 0, 1 << 27, 0),
    (7, 0): (0, 0, 0, 1 << 22 | 1 << 24 | 1 << 25),
    (0x1D, 0): (1, 0, 0, 0),
    (0x1D, 1): (1024 << 16 | 8192, 8 << 16 | 64, 16, 0),
}
"""What a CPU with AMX answers."""
_WENT_WELL = Trial(0, right=True)


@dataclass(frozen=True)
class Answers:
    """A machine of which all is known; `asked` is what it was asked for that costs something."""

    leaves: dict[tuple[int, int], tuple[int, int, int, int]] = field(
        default_factory=lambda: dict(_LEAVES)
    )
    kept: int = 0x600E7
    error: int = 0
    trial: Trial | None = _WENT_WELL
    asked: list[str] = field(default_factory=list)

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        return self.leaves.get((leaf, subleaf), (0, 0, 0, 0))

    def xcr0(self) -> int:
        return self.kept

    def permit(self) -> int:
        self.asked.append("permission")
        return self.error

    def try_tiles(self) -> Trial | None:
        self.asked.append("trial")
        return self.trial


def without(leaf: int, subleaf: int) -> Answers:
    return Answers({key: value for key, value in _LEAVES.items() if key != (leaf, subleaf)})


def test_tiles_that_work_are_asked_for_and_tried() -> None:
    machine = Answers()
    assert tile_problem(machine) == ""
    assert machine.asked == ["permission", "trial"]


def test_a_machine_without_child_processes_is_trusted() -> None:
    assert tile_problem(Answers(trial=None)) == ""


@pytest.mark.parametrize(
    ("machine", "problem", "asked"),
    [
        (without(7, 0), "the CPU has none", []),
        (without(1, 0), "the operating system does not keep them", []),
        (Answers(kept=0xE7), "the operating system does not keep them", []),
        (Answers(kept=0x200E7), "the operating system does not keep them", []),
        (without(0x1D, 0), "the CPU, or the virtual machine it belongs to, has no palette", []),
        (without(0x1D, 1), "the CPU has 0 of 0 rows of 0 bytes, less than the code uses", []),
        (Answers(error=errno.EPERM), "the kernel does not permit them: ", ["permission"]),
        (
            Answers(trial=Trial(signal.SIGILL, right=False)),
            "a trial of them ended with signal 4",
            ["permission", "trial"],
        ),
        (
            Answers(trial=Trial(0, right=False)),
            "a trial of them lost what they held",
            ["permission", "trial"],
        ),
    ],
)
def test_what_is_missing_is_said_and_no_more_asked(
    machine: Answers, problem: str, asked: list[str]
) -> None:
    assert tile_problem(machine).startswith(problem)
    assert machine.asked == asked


def test_configuration_describes_every_tile_in_its_full_size() -> None:
    text = FULL_PALETTE.configuration()
    assert len(text) == 64
    assert text[0] == 1 and not any(text[1:16])
    assert text[16:32] == (64).to_bytes(2, "little") * 8 and not any(text[32:48])
    assert text[48:56] == bytes([16]) * 8 and not any(text[56:])


def _ending(body: str) -> Trial:
    trial = HostMachine(f"define void @work(ptr %page) {{\n{body}\n}}\n").try_tiles()
    assert trial is not None
    return trial


@on_linux
def test_a_trial_that_dies_takes_nobody_along() -> None:
    trial = _ending('call void asm sideeffect "ud2", ""()\nret void')
    assert (trial.wait_status & 0x7F, trial.right) == (signal.SIGILL, False)


@on_linux
def test_a_trial_is_right_if_all_came_back() -> None:
    assert _ending("ret void") == Trial(0, right=False)
    copying = """
      %from = getelementptr i8, ptr %page, i64 1024
      %to = getelementptr i8, ptr %page, i64 9216
      call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 8192, i1 false)
      ret void"""
    assert _ending(copying) == Trial(0, right=True)


@on_linux
def test_cpuid_tells_what_llvm_knows() -> None:
    machine = HostMachine()
    has_avx2 = bool(machine.cpuid(7, 0)[1] >> 5 & 1)
    assert has_avx2 == ("avx2" in host_target().features)
    assert machine.cpuid(0x0FFFFFFF, 0) == (0, 0, 0, 0)


@on_linux
def test_a_host_with_tiles_has_passed_its_trial() -> None:
    target = host_target()
    if target.matrix_tiles is None:
        assert not any(name.startswith("amx-") for name in target.features)
        pytest.skip("this CPU has no matrix tiles, or its kernel does not permit them")
    assert HostMachine().try_tiles() == Trial(0, right=True)


def test_tiles_are_those_of_a_target_that_has_the_feature() -> None:
    target = replace(host_target(), features=("avx2",))
    assert target.matrix_tiles is None
    assert replace(target, features=("amx-tile", "avx2")).matrix_tiles == TilePalette(8, 16, 64)
