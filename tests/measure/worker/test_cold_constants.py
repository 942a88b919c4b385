from __future__ import annotations

from pathlib import Path

from compiler.loops.constant_layout import ConstantLayout
from measure.worker.reference import ensure_reference
from measure.worker.workload import Workload
from tests.compiler.schedule.small_kernels import f32, kernel_of


def test_every_copy_of_the_constants_is_one_of_its_own(tmp_path: Path) -> None:
    kernel = kernel_of([f32(3, 64), f32(64, 48)], [("matmul", ["x0", "x1"], {})], ["x1"])
    workload = Workload(kernel, ensure_reference(kernel, "key", tmp_path))
    layout = ConstantLayout(((1, 8),), (1, 0, 2))
    try:
        copies = workload.copied_constants({"in1": layout})
        assert len(copies) > 1
        assert len({copy["in1"] for copy in copies}) == len(copies)
        assert workload.copied_constants({"in1": layout}) == copies
        held = workload.nbytes
        assert held > len(copies) * 64 * 48 * 4
        workload.drop_constants()
        assert workload.nbytes < held - (len(copies) - 1) * 64 * 48 * 4
    finally:
        workload.close()


def test_a_kernel_without_constants_has_no_copies(tmp_path: Path) -> None:
    kernel = kernel_of([f32(3, 64)], [("relu", ["x0"], {})])
    workload = Workload(kernel, ensure_reference(kernel, "key", tmp_path))
    assert workload.copied_constants({}) == []
    workload.close()
