"""Sums of narrow products take the instructions that each named target has for them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.compiler.golden_files import check_golden
from tests.compiler.schedule.narrow_kernels import narrowed
from tests.compiler.schedule.small_kernels import kernel_of
from tests.targets import target_named
from tunefarm.compiler.llvm.compile_kernel import emit_loops
from tunefarm.compiler.llvm.machine import assembly
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType
from tunefarm.configs.settings import targets

PAIRS = ((DType.U8, DType.I8), (DType.I8, DType.I8), (DType.BF16, DType.BF16))
OFTEN = 4  # so many times at least in the code of a kernel: not for an address
_PRODUCT = re.compile(
    r"^\t(v?p?(?:tdp|dp|madd|mul|fma|fn?m[la])\w*|tile\w+|ldtilecfg|[su]{0,2}dot|bfdot|v?mul\w+"
    r"|[su]{0,2}mmla|bfmmla|mla|[su]mlal\w*|[su]mull\w*|tdp\w+)(\.\w+)?\t",
    re.MULTILINE,
)
"""Instructions that multiply, and those about tiles."""


@pytest.mark.parametrize("name", targets())
def test_products_are_those_of_the_target(name: str, update_golden: bool) -> None:
    target = target_named(name)
    lines = []
    for left, right in PAIRS:
        total = DType.F32 if left.is_float else DType.I32
        operands = [TensorType(total, (32, 128)), TensorType(total, (128, 64))]
        kernel = kernel_of(operands, [("matmul", ["x0", "x1"], {})], ["x1"])
        kernel = narrowed(kernel, left, right)
        schedule = default_schedule(kernel, target)
        emitted = emit_loops(lower(kernel, schedule), schedule, target, "kernel")
        found = Counter(match[0] for match in _PRODUCT.findall(assembly(emitted.text, target)))
        often = sorted(word for word, count in found.items() if count >= OFTEN)
        lines.append(f"{left} x {right} -> {total}: {', '.join(often)}\n")
    check_golden(f"instructions/{name}.txt", "".join(lines), update_golden)
