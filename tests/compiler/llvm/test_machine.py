"""LLVM makes code for the target that is asked for, and says what it refuses."""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.llvm.machine import assembly, object_code, target_machine
from tunefarm.compiler.target import host_target

ADD = """
define void @add(ptr %p) {
  %a = load <8 x float>, ptr %p, align 4
  %b = fadd <8 x float> %a, %a
  store <8 x float> %b, ptr %p, align 4
  ret void
}
"""
SSE = ("sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2")
# A CPU whose name implies AVX, on any machine that LLVM compiles for itself.
HASWELL = replace(
    host_target(),
    cpu="haswell",
    triple="x86_64-unknown-linux-gnu",
    features=(*SSE, "avx"),
    vector_bytes=32,
)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="masks x86 features on x86 alone")
def test_a_feature_that_the_target_lacks_is_not_used_whatever_its_cpu_is_called() -> None:
    assert "%ymm" in assembly(ADD, HASWELL)
    masked = assembly(ADD, replace(HASWELL, features=SSE, vector_bytes=16))
    assert "%xmm" in masked and "%ymm" not in masked


def test_code_is_made_for_another_machine() -> None:
    arm = replace(host_target(), cpu="cortex-a72", triple="aarch64-linux-gnu", features=("neon",))
    assert "fadd\tv" in assembly(ADD, arm)
    assert object_code(ADD, arm)[:4] == object_code(ADD, host_target())[:4] == b"\x7fELF"
    assert object_code(ADD, arm) != object_code(ADD, host_target())


@pytest.mark.parametrize("text", ["no LLVM", "define float @f() {\n  ret i32 0\n}\n"])
def test_text_that_llvm_refuses_is_told_with_its_reason(text: str) -> None:
    with pytest.raises(LoweringError, match=r"LLVM refuses the generated code: .+") as refused:
        object_code(text, host_target())
    assert refused.value.program == text


def test_each_thread_has_its_own_machine_for_a_target() -> None:
    host = host_target()
    with ThreadPoolExecutor(1) as other:
        elsewhere = other.submit(target_machine, host).result()
    assert target_machine(host) is target_machine(replace(host)) is not elsewhere
