"""What is said that makes an object file of code as text, for machines of other kinds too."""

from __future__ import annotations

import pytest

from tests.targets import target_named
from tunefarm.tuner.building.emit import assemble_command


@pytest.mark.parametrize("name", ["armv8-neon", "neoverse-v1"])
def test_assemblers_for_arm_are_told_of_the_cpu(name: str) -> None:
    target = target_named(name)
    command = assemble_command("asm", "m.s", target)
    assert command.endswith(f"-mcpu={target.cpu} -x assembler -c m.s -o m.o")


def test_code_of_llvm_says_itself_what_it_is_for() -> None:
    target = target_named("neoverse-v1")
    assert assemble_command("llvm", "m.ll", target).startswith("llc -O2 ")
