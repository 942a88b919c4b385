"""Which variants a model is built in for machines that differ."""

from __future__ import annotations

import pytest

from tests.targets import target_named
from tunefarm.compiler.target import baseline_target
from tunefarm.configs.settings import targets
from tunefarm.tuner.from_settings import fallback_targets


@pytest.mark.parametrize(
    ("name", "vectors"),
    [
        ("sapphirerapids", [64, 32, 16]),  # without tiles, AVX2, SSE2
        ("znver4", [32, 16]),
        ("x86-64-v3", [16]),
        ("x86-64-v2", [16]),
        ("neoverse-v1", [16]),
    ],
)
def test_variants_need_less_and_less(name: str, vectors: list[int]) -> None:
    target = target_named(name)
    found = fallback_targets(target)
    assert [other.vector_bytes for other in found] == vectors
    assert all(other.matrix_tiles is None for other in found)
    for one, other in zip((target, *found), found[:-1], strict=False):
        assert set(other.features) < set(one.features)


@pytest.mark.parametrize("name", targets())
def test_the_last_variant_runs_on_every_cpu_of_the_family(name: str) -> None:
    found = fallback_targets(target_named(name))
    assert found[-1] == baseline_target(target_named(name))
    assert {other.triple for other in found} == {target_named(name).triple}
    assert not any(other.lacking_feature for other in found)


def test_code_without_tiles_keeps_what_cpus_without_them_have() -> None:
    found = fallback_targets(target_named("sapphirerapids"))[0]
    assert {"avx512bf16", "avx512vnni"} <= set(found.features)
    for name in ("sapphirerapids", "znver4", "znver5"):
        assert set(found.features) <= set(target_named(name).features)
