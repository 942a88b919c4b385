"""Target: what the code generator must know of a CPU, and the key that records carry."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tunefarm.compiler.machine.amx_set_up import FULL_PALETTE, VECTOR_PALETTE, TilePalette
from tunefarm.compiler.machine.amx_state import TILE_FEATURES, host_tile_problem
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.configs.target_key import target_key

if TYPE_CHECKING:  # pydantic: what only loads an artifact goes without
    from tunefarm.configs.settings import Machine


class DotProduct(NamedTuple):
    """An instruction that adds sums of narrow products to wider numbers; it exists where the target
    has one of `features`.

    The name is that of the instruction set. Types are of the factors and of what is added to;
    `terms` products are added to each of these. `matrix`: it multiplies whole matrices, held in
    tiles (AMX) or in parts of vectors (I8MM). x86: Intel's Software Developer's Manual; 64-bit Arm:
    its Architecture Reference Manual for A-profile.
    """

    instruction: str
    left: DType
    right: DType
    accumulator: DType
    terms: int
    features: tuple[str, ...]
    matrix: bool = False


_I8, _U8, _I16, _I32 = DType.I8, DType.U8, DType.I16, DType.I32
_BF16, _F16, _F32 = DType.BF16, DType.F16, DType.F32
_VNNI = ("avx512vnni", "avxvnni")

_DOT_PRODUCTS = {
    "x86_64": (
        DotProduct("tdpbusd", _U8, _I8, _I32, 4, ("amx-int8",), matrix=True),
        DotProduct("tdpbsud", _I8, _U8, _I32, 4, ("amx-int8",), matrix=True),
        DotProduct("tdpbssd", _I8, _I8, _I32, 4, ("amx-int8",), matrix=True),
        DotProduct("tdpbuud", _U8, _U8, _I32, 4, ("amx-int8",), matrix=True),
        DotProduct("tdpbf16ps", _BF16, _BF16, _F32, 2, ("amx-bf16",), matrix=True),
        DotProduct("tdpfp16ps", _F16, _F16, _F32, 2, ("amx-fp16",), matrix=True),
        DotProduct("vpdpbusd", _U8, _I8, _I32, 4, _VNNI),
        DotProduct("vpdpbsud", _I8, _U8, _I32, 4, ("avxvnniint8",)),
        DotProduct("vpdpbssd", _I8, _I8, _I32, 4, ("avxvnniint8",)),
        DotProduct("vpdpbuud", _U8, _U8, _I32, 4, ("avxvnniint8",)),
        DotProduct("vpdpwssd", _I16, _I16, _I32, 2, _VNNI),
        DotProduct("vdpbf16ps", _BF16, _BF16, _F32, 2, ("avx512bf16",)),
        DotProduct("vpmaddwd", _I16, _I16, _I32, 2, ("avx2",)),
    ),
    "aarch64": (
        DotProduct("smmla", _I8, _I8, _I32, 8, ("i8mm",), matrix=True),
        DotProduct("ummla", _U8, _U8, _I32, 8, ("i8mm",), matrix=True),
        DotProduct("usmmla", _U8, _I8, _I32, 8, ("i8mm",), matrix=True),
        DotProduct("bfmmla", _BF16, _BF16, _F32, 4, ("bf16",), matrix=True),
        DotProduct("sdot", _I8, _I8, _I32, 4, ("dotprod",)),
        DotProduct("udot", _U8, _U8, _I32, 4, ("dotprod",)),
        DotProduct("usdot", _U8, _I8, _I32, 4, ("i8mm",)),
        DotProduct("bfdot", _BF16, _BF16, _F32, 2, ("bf16",)),
    ),
}
"""By architecture, the fastest first."""


def _dot_products(
    architecture: str, features: Collection[str], left: DType, right: DType, accumulator: DType
) -> tuple[DotProduct, ...]:
    """The instructions for these types that a CPU with such features has, the fastest first."""
    types = (left, right, accumulator)
    return tuple(
        item
        for item in _DOT_PRODUCTS.get(architecture, ())
        if (item.left, item.right, item.accumulator) == types
        and any(name in features for name in item.features)
    )


_CACHE_ROOT = Path("/sys/devices/system/cpu/cpu0/cache")


@frozen
class Target:
    """A CPU as the code generator sees it.

    `vector_bytes` is the size of a vector register, `vector_registers` how many of those there are,
    caches are in bytes per core (L3: shared), `features` the LLVM feature names that the CPU has,
    sorted. `tile_palette` describes the matrix tiles of a CPU that has them, see `matrix_tiles`.

    A later field needs a default that says what was so before: targets that have it keep their
    JSON. One that changes the code belongs in the key (`tunefarm.configs.target_key`).

    `table` is the machine's table where it was measured for this CPU; None: the shipped one. It is
    in neither JSON nor key, since it says how fast code is, never what it computes.
    """

    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    tile_palette: TilePalette = FULL_PALETTE
    table: Machine | None = None

    def lanes(self, dtype: DType) -> int:
        """Elements of the type in a vector register."""
        return self.vector_bytes // dtype.bytes

    @property
    def has_fma(self) -> bool:
        """Whether it multiplies and adds in one instruction."""
        return "fma" in self.features or self.triple.startswith("aarch64")

    @property
    def masks_vectors(self) -> bool:
        """Some elements of a vector can be loaded or stored without branches: AVX and later."""
        return self.vector_bytes >= 32 and self.triple.startswith("x86_64")

    @property
    def has_gather(self) -> bool:
        """Whether one instruction loads a vector of elements from anywhere."""
        return "avx2" in self.features

    @property
    def has_avx512(self) -> bool:
        """AVX-512 as all CPUs but the first have it: short vectors, and integers of 64 bits too."""
        return {"avx512f", "avx512vl", "avx512dq"} <= set(self.features)

    @property
    def has_half_floats(self) -> bool:
        """Whether the CPU computes in f16, vectors of all sizes too."""
        of_x86 = {"avx512fp16", "avx512vl"} <= set(self.features)
        return of_x86 or "fullfp16" in self.features

    @property
    def widens_half_floats(self) -> bool:
        """Whether one instruction adds products of f16 to sums in f32."""
        return "fp16fml" in self.features

    @property
    def activations(self) -> DType:
        """The 8-bit type that instructions multiply with signed weights."""
        return DType.I8 if self.triple.startswith("aarch64") else DType.U8

    def states(self, rows: int) -> DType:
        """The type that rounded hidden states of `rows` rows are kept in: weights are signed bytes.

        Unsigned bytes where an instruction adds such products; products of signed factors are fewer
        instructions elsewhere. Numbers of 16 bits are still fewer with AVX2: nobody turns bits by
        the signs of each row, and weights are widened once for all rows. On a Zen 3 4 and 8 rows
        take 0.80 to 0.95 of the time and one 0.92 to 1.0, on a Skylake-SP 0.71 to 0.86, but one
        1.08.
        """
        known = self.dot_products(DType.U8, DType.I8, DType.I32)
        if not all(instruction.matrix for instruction in known):
            return DType.U8
        pairs = self.dot_products(DType.I16, DType.I16, DType.I32)
        return DType.I16 if pairs and (rows > 1 or not self.has_avx512) else DType.I8

    @property
    def cached_weights(self) -> int:
        """The bytes of weights up to which a row is multiplied faster by floats than by integers.

        Widening bytes takes two instructions a vector. On Zen 1, whose vectors are halves of 256
        bits, that is slower than reading floats from its last cache (8 MiB; 0.7 of the speed for
        4 MiB of floats, 1.5 to 1.6 times for 16 MiB and more). Of vectors of 512 bits each float
        read is a cache line: on Zen 5 integers take 0.55 to 1 times as long as floats of 64 KiB to
        4 MiB with 1 to 64 rows.
        """
        return 0 if self.has_avx512 else self.l3_bytes

    @property
    def matrix_tiles(self) -> TilePalette | None:
        """The matrix tiles (AMX) that code may use; None of a CPU without."""
        return self.tile_palette if "amx-tile" in self.features else None

    def without_matrix_tiles(self) -> Target:
        """The same CPU if its system, or a virtual machine, keeps its matrix tiles back."""
        features = tuple(name for name in self.features if not name.startswith(TILE_FEATURES))
        return replace(self, features=features)

    @property
    def product_tiles(self) -> TilePalette | None:
        """The tiles that products of matrices are computed in; None of a CPU without.

        They are its matrix tiles, or vectors that instructions take for 2x2 numbers.
        """
        if self.triple.startswith("aarch64") and {"bf16", "i8mm"} & set(self.features):
            return VECTOR_PALETTE
        return self.matrix_tiles

    def dot_products(self, left: DType, right: DType, accumulator: DType) -> tuple[DotProduct, ...]:
        """The instructions that add products of these types, the fastest first."""
        architecture = self.triple.split("-")[0]
        return _dot_products(architecture, self.features, left, right, accumulator)

    def multiplies_tiles(self, dtype: DType) -> bool:
        """Whether the CPU has matrix tiles (AMX) whose products sum factors of this float type."""
        known = self.dot_products(dtype, dtype, DType.F32)
        return self.matrix_tiles is not None and any(item.matrix for item in known)

    @property
    def converted(self) -> frozenset[DType]:
        """The narrow floats that the CPU has instructions for to convert them from and to f32."""
        arm = self.triple.startswith("aarch64")
        f16 = {DType.F16} if arm or "f16c" in self.features else set[DType]()
        of_bf16 = {"bf16"} if arm else {"avx512bf16", "avxneconvert"}
        bf16 = {DType.BF16} if of_bf16 & set(self.features) else set[DType]()
        return frozenset(f16 | bf16)

    @property
    def lacking_feature(self) -> str:
        """What the CPU lacks for another of its features, or for its vectors; "" if nothing."""
        if not self.triple.startswith("x86_64"):
            return ""
        return _lacking_feature(self.features, self.vector_bytes)

    @property
    def machine(self) -> Machine:
        """What data and arithmetic cost on it: as it was calibrated, or the shipped table."""
        if self.table is not None:
            return self.table
        return _shipped(self.cpu, self.triple.split("-")[0], self.lanes(DType.F32))

    @property
    def key(self) -> str:
        """Identifies targets for which the same machine code is best, e.g. `znver3-1a2b3c4d`.

        What is in it, and what is left out and why: `tunefarm.configs.target_key`.
        """
        key = target_key(self.to_json())
        assert key is not None
        return key

    def to_json(self) -> dict[str, Any]:
        """The target as JSON values, with its f32 `lanes`; what equals a default is left out."""
        values: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "table":
                continue
            if field.name == "vector_bytes":
                values["lanes"] = self.lanes(DType.F32)
            elif field.default is MISSING or value != field.default:
                values[field.name] = list(value) if isinstance(value, tuple) else value
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; a missing field has its default.

        Raises ValueError for a field that this version does not have. Without it the target would
        be another one, under another key, that other code fits.
        """
        known = {field.name for field in fields(cls)} - {"table"} | {"lanes"}
        unknown = set(data) - known
        if unknown:
            raise ValueError(
                f"the target {data.get('cpu')} has {', '.join(sorted(unknown))}, which this "
                "version does not know: use the version that described it, or a newer one"
            )
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        values["features"] = tuple(data["features"])
        if "tile_palette" in values:
            values["tile_palette"] = TilePalette(*values["tile_palette"])
        values["vector_bytes"] = values.pop("lanes") * DType.F32.bytes
        return cls(**values)


@cache
def _shipped(cpu: str, architecture: str, lanes: int) -> Machine:
    from tunefarm.configs.settings import shipped_machine

    return shipped_machine(cpu, architecture, lanes)


_BASELINE_FEATURES = {"x86_64": ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2"), "aarch64": ("neon",)}


def baseline_target(target: Target) -> Target:
    """What every CPU of the target's family can run, e.g. SSE2 for x86-64."""
    family = target.triple.split("-")[0]
    return replace(
        target,
        cpu={"x86_64": "x86-64"}.get(family, "generic"),
        features=_BASELINE_FEATURES.get(family, ()),
        vector_bytes=16,
        vector_registers=32 if family == "aarch64" else 16,
        l1_bytes=32 * 1024,
        l2_bytes=256 * 1024,
        l3_bytes=4 * 1024 * 1024,
        table=None,
    )


def _llvm() -> Any:
    """LLVM, which takes 60 ms to import: what only loads an artifact goes without."""
    import llvmlite.binding as llvm

    return llvm


def llvm_version() -> str:
    """The version of LLVM that makes and loads code, e.g. `20.1.8`."""
    return ".".join(map(str, _llvm().llvm_version_info))


@cache
def host_target() -> Target:
    """The CPU that this process runs on.

    With matrix tiles if it has them and the kernel lets this process use them, which is asked for
    here; see `host_tile_refusal` where it does not.
    """
    features = host_features()
    triple = _llvm().get_process_triple()
    vector_bytes, registers = _vector_facts(triple, features)
    target = Target(
        triple=triple,
        cpu=_llvm().get_host_cpu_name(),
        features=features,
        vector_bytes=vector_bytes,
        vector_registers=registers,
        l1_bytes=_cache_bytes(1, 32 * 1024),
        l2_bytes=_cache_bytes(2, 512 * 1024),
        l3_bytes=_cache_bytes(3, 8 * 1024 * 1024),
        cores=os.cpu_count() or 1,
    )
    return target.without_matrix_tiles() if host_tile_refusal() else target


def host_tile_refusal() -> str:
    """Why this process goes without the matrix tiles that its CPU tells of; "" if it does not."""
    description = any(name.startswith(TILE_FEATURES) for name in host_features())
    return host_tile_problem() if description else ""


@cache
def host_features() -> tuple[str, ...]:
    """The names that LLVM has for what this CPU tells of, sorted."""
    return tuple(sorted(name for name, on in _llvm().get_host_cpu_features().items() if on))


def _vector_facts(triple: str, features: tuple[str, ...]) -> tuple[int, int]:
    """Bytes and number of vector registers."""
    if triple.startswith(("aarch64", "arm64")):
        return 16, 32
    if "avx512f" in features and "avx512vl" in features:
        return 64, 32
    if "avx2" in features or "avx" in features:
        return 32, 16
    return 16, 16


def _cache_bytes(level: int, otherwise: int) -> int:
    """Size of the data or unified cache of `level` in bytes; `otherwise` where it is not told."""
    for entry in sorted(_CACHE_ROOT.glob("index*")):
        try:
            if int((entry / "level").read_text()) != level:
                continue
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            return _parse_size((entry / "size").read_text().strip())
        except (OSError, ValueError):
            continue
    return otherwise


def _parse_size(text: str) -> int:
    """Bytes from the kernel's notation: 32K, 1M, 12345."""
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


_NEEDS = {
    "avx": ("sse4.2",),
    "avx2": ("avx",),
    "fma": ("avx",),
    "f16c": ("avx",),
    "avx512f": ("avx2", "fma", "f16c"),
    **dict.fromkeys(("avxifma", "avxneconvert", "avxvnni"), ("avx2",)),
    **dict.fromkeys(("avxvnniint16", "avxvnniint8"), ("avx2",)),
    **dict.fromkeys(("avx512bf16", "avx512bitalg", "avx512fp16"), ("avx512bw",)),
    **dict.fromkeys(("avx512vbmi", "avx512vbmi2"), ("avx512bw",)),
}
_FAMILIES = {"avx512": "avx512f", "amx-": "amx-tile"}
"""What all features whose names begin so need."""
_VECTORS = {32: "avx", 64: "avx512f"}
"""What vectors of so many bytes need."""


def _lacking_feature(features: Collection[str], vector_bytes: int) -> str:
    """What an x86 CPU of these features lacks for one of them, or for its vectors; "" if nothing.

    For example `avx512f needs fma`. LLVM ends the process for code that lacks what its features
    need: an instruction set that builds on another one is off where that one is (LLVM's X86.td),
    and code that was made for it is then cut into pieces that there are no instructions for.
    """
    for bytes, needed in sorted(_VECTORS.items()):
        if vector_bytes >= bytes and needed not in features:
            return f"vectors of {vector_bytes} bytes need {needed}"
    for feature in sorted(features):
        for needed in _needs_of(feature):
            if needed not in features:
                return f"{feature} needs {needed}"
    return ""


def _needs_of(feature: str) -> Iterator[str]:
    yield from _NEEDS.get(feature, ())
    for start, needed in _FAMILIES.items():
        if feature.startswith(start) and feature != needed:
            yield needed
