"""Constants that an artifact holds in one packing and makes others of, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler.runtime.edited_artefacts import rewrite_manifest
from tests.compiler.runtime.hand_kernels import COUNT, chain_spec, sealed
from tunefarm import compiler
from tunefarm.compiler.errors import ArtefactError
from tunefarm.compiler.loops.constant_layout import ConstantLayout
from tunefarm.compiler.runtime.artefact import artefact, file_header, write_artefact
from tunefarm.compiler.runtime.artefact.file_header import digest_of, lineage_of
from tunefarm.compiler.runtime.artefact.manifest import (
    Part,
    Repacking,
    parts_from_json,
    parts_to_json,
)
from tunefarm.compiler.runtime.artefact.repacking import numbers_of, repacked
from tunefarm.compiler.runtime.artefact.seal import part_digests
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, ExecutableSpec, aligned
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.packing import Packing
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.compiler.types.winograd_filter import transformed_shape

ROWS, COLUMNS = 17, 300
LAST = Packing((ROWS, COLUMNS), ((1, 8),), (1, 0, 2))
FIRST = Packing((ROWS, COLUMNS), ((0, 4),), (0, 2, 1))
NUMBERS = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def packed(numbers: Array, packing: Packing) -> Array:
    return ConstantLayout(packing.splits, packing.order).pack(numbers)


@st.composite
def packings(draw: st.DrawFn, shape: tuple[int, ...]) -> Packing:
    axes = draw(st.lists(st.sampled_from(range(len(shape))), unique=True)) if shape else []
    splits = tuple((axis, draw(st.integers(1, 9))) for axis in axes)
    order = draw(st.permutations(range(len(shape) + len(splits))))
    return Packing(shape, splits, tuple(order))


@given(data=st.data())
def test_any_packing_is_made_of_any_other(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 7), max_size=4)))
    dtype = data.draw(st.sampled_from([np.int8, np.float16, np.float32, np.int64]))
    before, after = data.draw(packings(shape)), data.draw(packings(shape))
    count = int(np.prod(shape))
    numbers = np.arange(1, count + 1).reshape(shape).astype(dtype)
    source, wanted = packed(numbers, before), packed(numbers, after)
    found = repacked(source, Repacking(0, numbers.itemsize, before, after))
    assert found.tobytes() == wanted.tobytes() and address_of(found) % ALIGNMENT == 0
    parts = (
        Part(0, source.nbytes, "a"),
        Part(0, wanted.nbytes, "b", Repacking(0, numbers.itemsize, before, after)),
    )
    assert parts_from_json(parts_to_json(parts)) == parts


@given(data=st.data())
def test_numbers_are_known_in_any_packing_with_rows_of_zeros_or_without(
    data: st.DataObject,
) -> None:
    rows, factor = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 9))
    numbers = np.arange(1, 5 * rows + 1, dtype=np.float32).reshape(rows, 5)
    filled = rows + data.draw(st.integers(0, -rows % factor))
    more = np.zeros((filled, 5), np.float32)
    more[:rows] = numbers
    plain = packed(numbers, Packing((rows, 5), (), (1, 0)))
    split = Packing((filled, 5), ((0, factor),), (0, 2, 1))
    digest, found = numbers_of(packed(more, split), split)
    assert (digest, found.shape) == (
        numbers_of(plain, Packing((rows, 5), (), (1, 0)))[0],
        (rows, 5),
    )
    recipe = Repacking(0, 4, Packing((rows, 5), (), (1, 0)), found)
    assert repacked(plain, recipe).tobytes() == packed(more, split).tobytes()


def with_constant(
    packing: Packing, cpu: str, *features: str, numbers: Sequence[Array] = (NUMBERS,)
) -> ExecutableSpec:
    """A model for a CPU with such features, with more constants in a packing."""
    spec = chain_spec(np.linspace(-1, 1, COUNT, dtype=np.float32))
    target = replace(
        host_target(), cpu=cpu, features=tuple(sorted({*host_target().features, *features}))
    )
    constants = (*spec.constants, *(packed(each, packing) for each in numbers))
    plain = tuple(Packing(array.shape, (), tuple(range(array.ndim))) for array in spec.constants)
    return sealed(
        replace(
            spec,
            target=target,
            constants=constants,
            digests=part_digests(spec.objects, constants),
            packings=(*plain, *[packing] * len(numbers)),
        )
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model for a CPU that nobody has, and for this one, whose constant is made of that's."""
    better, here = with_constant(LAST, "better", "avx1024f"), with_constant(FIRST, "here")
    write_artefact.save(better, tmp_path / "two.tuned", [here])
    return tmp_path / "two.tuned"


def test_a_constant_of_another_target_is_stored_once(path: Path, tmp_path: Path) -> None:
    assert path.read_bytes()[8] == file_header.REPACKED
    (loaded,) = artefact.read_programs(path)
    np.testing.assert_array_equal(loaded.constants[-1], packed(NUMBERS, FIRST))
    assert not loaded.constants[-1].flags.writeable
    alone = tmp_path / "alone.tuned"
    write_artefact.save(with_constant(FIRST, "here"), alone)
    assert path.stat().st_size < alone.stat().st_size + NUMBERS.nbytes // 2
    compiler.load(path).save(tmp_path / "again.tuned")
    assert (tmp_path / "again.tuned").read_bytes() == alone.read_bytes()


def test_constants_of_another_target_lie_one_behind_the_other(tmp_path: Path) -> None:
    """So that they are large enough together for pages that are large."""
    numbers = [NUMBERS, NUMBERS + 1, NUMBERS + 2]
    better = with_constant(LAST, "better", "avx1024f", numbers=numbers)
    here = with_constant(FIRST, "here", numbers=numbers)
    write_artefact.save(better, tmp_path / "two.tuned", [here])
    (loaded,) = artefact.read_programs(tmp_path / "two.tuned")
    found = loaded.constants[-len(numbers) :]
    for array, each in zip(found, numbers, strict=True):
        np.testing.assert_array_equal(array, packed(each, FIRST))
        assert address_of(array) % ALIGNMENT == 0
    starts = sorted(map(address_of, found))
    assert {later - first for first, later in pairwise(starts)} == {aligned(found[0].nbytes)}


def test_contents_are_those_of_all_variants(path: Path) -> None:
    found = artefact.read_contents(path)
    better, here = found.variants
    assert (found.chosen, found.digest, found.parents) == (1, digest_of(path), ())
    assert [variant.target.cpu for variant in found.variants] == ["better", "here"]
    assert (better.repacked_bytes, here.repacked_bytes) == (0, packed(NUMBERS, FIRST).nbytes)
    np.testing.assert_array_equal(better.programs[0].constants[-1], packed(NUMBERS, LAST))
    np.testing.assert_array_equal(here.programs[0].constants[-1], packed(NUMBERS, FIRST))


FILTERS = np.random.default_rng(2).standard_normal((20, 12, 3, 3)).astype(np.float32)
BLOCKED = Packing(FILTERS.shape, ((0, 16),), (0, 3, 4, 2, 1))


def transformed(m: int, block: int, filters: Array = FILTERS) -> tuple[Array, Packing]:
    """What a kernel that takes Winograd's algorithm has of the filters, and how it lies."""
    layout = ConstantLayout(((2, block),), (0, 1, 2, 4, 3), m)
    return layout.pack(filters), layout.packing(transformed_shape(FILTERS.shape, m))


def of_filters(cpu: str, array: Array, packing: Packing, *features: str) -> ExecutableSpec:
    """A model for a CPU whose last constant is this one."""
    spec = with_constant(LAST, cpu, *features)
    constants = (*spec.constants[:-1], array)
    digests = part_digests(spec.objects, constants)
    packings = (*spec.packings[:-1], packing)
    return sealed(replace(spec, constants=constants, digests=digests, packings=packings))


@pytest.fixture
def filters(tmp_path: Path) -> Path:
    """A model for a CPU that nobody has, which reads filters as they are, and for this one, which
    reads transforms of them."""
    better = of_filters("better", packed(FILTERS, BLOCKED), BLOCKED, "avx1024f")
    here = of_filters("here", *transformed(4, 8))
    write_artefact.save(better, tmp_path / "filters.tuned", [here])
    return tmp_path / "filters.tuned"


def test_a_transform_that_one_cpu_wants_of_filters_is_not_stored(filters: Path) -> None:
    array, _ = transformed(4, 8)
    (loaded,) = artefact.read_programs(filters)
    np.testing.assert_array_equal(loaded.constants[-1], array)
    assert filters.read_bytes()[8] == file_header.FORMAT
    better, here = artefact.read_contents(filters).variants
    assert (better.repacked_bytes, here.repacked_bytes) == (0, array.nbytes)
    compiler.load(filters).save(filters.with_name("again.tuned"))
    write_artefact.save(of_filters("here", *transformed(4, 8)), filters.with_name("alone.tuned"))
    again, alone = (filters.with_name(f"{name}.tuned") for name in ("again", "alone"))
    assert again.read_bytes() == alone.read_bytes()


def test_a_transform_that_several_cpus_share_is_stored(tmp_path: Path) -> None:
    better = of_filters("better", packed(FILTERS, BLOCKED), BLOCKED, "avx1024f", "avx2048f")
    others = [
        of_filters("good", *transformed(4, 8), "avx1024f"),
        of_filters("here", *transformed(4, 8)),
    ]
    write_artefact.save(better, tmp_path / "three.tuned", others)
    found = artefact.read_contents(tmp_path / "three.tuned").variants
    assert [variant.repacked_bytes for variant in found] == [0, 0, 0]


def test_what_is_no_transform_of_the_filters_is_stored(tmp_path: Path) -> None:
    array, packing = transformed(4, 8)
    other = array.copy()
    other[0, 0, 0] += 1.0
    better = of_filters("better", packed(FILTERS, BLOCKED), BLOCKED, "avx1024f")
    write_artefact.save(better, tmp_path / "two.tuned", [of_filters("here", other, packing)])
    (loaded,) = artefact.read_programs(tmp_path / "two.tuned")
    np.testing.assert_array_equal(loaded.constants[-1], other)
    assert (tmp_path / "two.tuned").read_bytes()[8] == file_header.PROGRAMS


def test_transforms_of_denormal_filters_are_stored(tmp_path: Path) -> None:
    """A process that loads them may flush denormal numbers, and would get others."""
    filters = FILTERS.copy()
    filters[3, 5] = 1e-40
    better = of_filters("better", packed(filters, BLOCKED), BLOCKED, "avx1024f")
    here = of_filters("here", *transformed(4, 8, filters))
    write_artefact.save(better, tmp_path / "two.tuned", [here])
    assert (tmp_path / "two.tuned").read_bytes()[8] == file_header.PROGRAMS


@pytest.mark.parametrize(
    "change",
    [
        lambda recipe: recipe.__setitem__(4, 2),
        lambda recipe: recipe.__setitem__(4, 3),
        lambda recipe: recipe.__setitem__(4, 0),
        lambda recipe: recipe.__setitem__(4, "4"),
        lambda recipe: recipe.append(4),
        lambda recipe: recipe.pop(),
        lambda recipe: recipe[2].__setitem__(0, [20, 12, 9, 1]),
        lambda recipe: recipe[3].__setitem__(0, [6, 6, 12, 20]),
        lambda recipe: recipe[3].__setitem__(0, [36, 20, 12]),
    ],
)
def test_an_edited_transform_is_refused(filters: Path, change: Callable[[list[Any]], None]) -> None:
    rewrite_manifest(filters, lambda manifest: change(repacking(manifest)[3]))
    with pytest.raises(ArtefactError, match=r"damaged|not valid|lacks"):
        artefact.read_programs(filters)


def test_a_fallback_alone_is_stored_as_older_versions_read_it(tmp_path: Path) -> None:
    spec, other = with_constant(LAST, "here"), with_constant(FIRST, "lesser")
    write_artefact.save(spec, tmp_path / "f.tuned", [sealed(replace(other, fallback=True))])
    assert (tmp_path / "f.tuned").read_bytes()[8] == file_header.TWO_VARIANTS


def repacking(manifest: dict[str, Any]) -> list[Any]:
    return next(part for part in manifest["parts"] if len(part) > 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.__setitem__(0, 64),
        lambda part: part.__setitem__(1, part[1] + 4),
        lambda part: part.__setitem__(2, hashlib.sha256(b"").hexdigest()),
        lambda part: part[3].__setitem__(0, 0),
        lambda part: part[3].__setitem__(0, 99),
        lambda part: part[3].__setitem__(0, -1),
        lambda part: part[3].__setitem__(1, 2),
        lambda part: part[3].__setitem__(1, True),
        lambda part: part[3].pop(),
        lambda part: part.append(0),
        lambda part: part[3][2][0].reverse(),
        lambda part: part[3][3].__setitem__(1, [[0, 0]]),
        lambda part: part[3][3].__setitem__(1, [[7, 4]]),
        lambda part: part[3][3].__setitem__(1, [[0, 4], [0, 4]]),
        lambda part: part[3][3].__setitem__(1, [[0, 1 << 40]]),
        lambda part: part[3][3].__setitem__(2, [0, 1, 1]),
        lambda part: part[3][3].__setitem__(2, [1, 0, 2]),
        lambda part: part.pop(),
    ],
)
def test_an_edited_repacking_is_refused(path: Path, change: Callable[[list[Any]], None]) -> None:
    rewrite_manifest(path, lambda manifest: change(repacking(manifest)))
    with pytest.raises(ArtefactError, match=r"damaged|not valid|lacks"):
        artefact.read_programs(path)


def test_parents_are_named_and_covered_by_the_digest(path: Path) -> None:
    before, parents = lineage_of(path), ("ab" * 32, "cd" * 32)
    artefact.set_parents(path, parents)
    found = lineage_of(path)
    assert (found.manifest, found.parents) == (before.manifest, parents)
    assert found.digest_with(()) == before.digest != found.digest
    assert digest_of(path) == found.digest == before.digest_with(parents)
    contents = artefact.read_contents(path)
    assert (contents.digest, contents.parents) == (found.digest, parents)
    np.testing.assert_array_equal(
        contents.variants[1].programs[0].constants[-1], packed(NUMBERS, FIRST)
    )


@pytest.mark.parametrize("parents", [["x"], ["AB" * 32], ["ab" * 32] * 17, "ab" * 32, [5], None])
def test_what_are_no_parents_is_refused(path: Path, parents: object) -> None:
    artefact.set_parents(path, ("ab" * 32,))
    rewrite_manifest(path, lambda manifest: manifest.update(parents=parents))
    for read in (artefact.read_programs, lineage_of):
        with pytest.raises(ArtefactError, match="parents"):
            read(path)
