from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.llvm.machine import assembly
from compiler.target import host_target

ADD = """
define void @add(ptr %p) {
  %a = load <8 x float>, ptr %p, align 4
  %b = fadd <8 x float> %a, %a
  store <8 x float> %b, ptr %p, align 4
  ret void
}
"""


def test_a_feature_that_the_target_lacks_is_not_used_whatever_its_cpu_is_called() -> None:
    host = host_target()
    if "avx" not in host.features:
        pytest.skip("this CPU has no AVX")
    masked = replace(host, features=tuple(f for f in host.features if f.startswith("sse")))
    assert "%ymm" in assembly(ADD, host)
    assert "%ymm" not in assembly(ADD, masked)
