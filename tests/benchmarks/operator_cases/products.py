"""Products of matrices: plain, transposed, batched, in Einstein's notation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase, one_node, shape_text

_WEIGHTED: tuple[tuple[str, Sequence[int], int], ...] = (
    ("tokens", (1, 128, 768), 768),
    ("tokens up", (1, 128, 768), 3072),
    ("tokens down", (1, 128, 3072), 768),
    ("one token", (1, 1, 768), 3072),
    ("odd", (1, 197, 131), 97),
    ("8 tokens", (1, 8, 512), 512),
    ("tall", (4096, 32), 32),
    ("few columns", (1024, 256), 5),
    ("one column", (1024, 512), 1),
    ("few rows, many columns", (4, 256), 8000),
)
_GEMM: tuple[tuple[int, int, int, bool, bool], ...] = (
    (1, 2048, 1000, False, True),
    (16, 512, 1000, False, True),
    (64, 256, 256, True, False),
    (33, 127, 65, True, True),
)
_BATCHED: tuple[tuple[str, Sequence[int], Sequence[int]], ...] = (
    ("scores x values", (12, 128, 128), (12, 128, 64)),
    ("odd", (7, 53, 61), (7, 61, 37)),
    ("small", (256, 16, 16), (256, 16, 16)),
    ("broadcast", (8, 64, 128), (1, 128, 64)),
    ("both computed", (384, 384), (384, 384)),
    ("matrix times vectors", (64, 128, 128), (64, 128, 1)),
    ("vector times matrices", (32, 1, 128), (32, 128, 300)),
)
_EINSUM: tuple[tuple[str, Sequence[Sequence[int]]], ...] = (
    ("bhqd,bhkd->bhqk", ((1, 12, 128, 64), (1, 12, 128, 64))),
    ("bqhd,bkhd->bhqk", ((1, 128, 12, 64), (1, 128, 12, 64))),
    ("bhqk,bkhd->bqhd", ((1, 12, 128, 128), (1, 128, 12, 64))),
    ("bij,bjk->bik", ((8, 100, 60), (8, 60, 90))),
    ("bsd,hde->bhse", ((1, 128, 256), (8, 256, 32))),
    ("nchw,cd->ndhw", ((1, 64, 28, 28), (64, 64))),
    ("nctv,tvw->nctw", ((1, 64, 50, 25), (50, 25, 25))),
    ("bid,bjd->bij", ((4, 77, 64), (4, 65, 64))),
    ("bd,bd->b", ((256, 512), (256, 512))),
    ("i,j->ij", ((700,), (500,))),
    ("bcij->bcji", ((2, 16, 100, 90),)),
)


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for name, shape, columns in _WEIGHTED:
        yield _weighted(name, shape, columns)
    for rows, terms, columns, transposed_a, transposed_b in _GEMM:
        yield _gemm(rows, terms, columns, transposed_a, transposed_b)
    for name, left, right in _BATCHED:
        name = f"matmul {name}: {shape_text(left)} by {shape_text(right)}"
        yield one_node("matmul batched", name, "MatMul", left, right)
    for name, shape in (("", (1, 12, 128, 64)), ("odd", (1, 6, 197, 48)), ("long", (8, 1024, 64))):
        yield _queries_and_keys(name, shape)
    for equation, shapes in _EINSUM:
        name = f"einsum {equation}: {' '.join(map(shape_text, shapes))}"
        yield one_node("einsum", name, "Einsum", *shapes, equation=equation)
    yield OperatorCase("matmul", "matmul gated up, SiLU, down: 64x256 by 704", _gated)
    yield OperatorCase("matmul", "conv, flatten, gemm: 1x16x28x28 to 100", _after_convolution)


def _weighted(name: str, shape: Sequence[int], columns: int) -> OperatorCase:
    def write(net: CaseBuilder) -> str:
        filters = net.weight(shape[-1], columns, fan_in=shape[-1])
        product = net.node("MatMul", net.input(*shape), filters)
        return net.node("Add", product, net.weight(columns, fan_in=100))

    return OperatorCase("matmul", f"matmul {name}: {shape_text(shape)} to {columns}", write)


def _gemm(
    rows: int, terms: int, columns: int, transposed_a: bool, transposed_b: bool
) -> OperatorCase:
    def write(net: CaseBuilder) -> str:
        left = net.input(terms, rows) if transposed_a else net.input(rows, terms)
        shape = (columns, terms) if transposed_b else (terms, columns)
        right = net.weight(*shape, fan_in=terms)
        bias = net.weight(columns, fan_in=100)
        return net.node("Gemm", left, right, bias, transA=transposed_a, transB=transposed_b)

    marks = f"{'T' * transposed_a or '-'}{'T' * transposed_b or '-'}"
    return OperatorCase("matmul", f"gemm {marks}: {rows}x{terms}x{columns}", write)


def _queries_and_keys(name: str, shape: Sequence[int]) -> OperatorCase:
    def write(net: CaseBuilder) -> str:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        keys = net.node("Transpose", net.input(*shape), perm=order)
        return net.node("MatMul", net.input(*shape), keys)

    name = " ".join(filter(None, ("queries x keys", name)))
    return OperatorCase("matmul batched", f"{name}: {shape_text(shape)}", write)


def _gated(net: CaseBuilder) -> str:
    data = net.input(64, 256)
    gate = net.node("MatMul", data, net.weight(256, 704, fan_in=256))
    up = net.node("MatMul", data, net.weight(256, 704, fan_in=256))
    active = net.node("Mul", gate, net.node("Sigmoid", gate))
    return net.node("MatMul", net.node("Mul", active, up), net.weight(704, 256, fan_in=704))


def _after_convolution(net: CaseBuilder) -> str:
    data = net.node("Flatten", net.conv(net.input(1, 16, 28, 28), 16, 8))
    return net.node("Gemm", data, net.weight(100, 8 * 28 * 28), net.weight(100), transB=1)
