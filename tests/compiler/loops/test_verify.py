"""The verifier accepts what lowering makes and refuses each broken rule, side by side."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from tests.compiler.loops.tiny_kernels import LANES, STEP_KERNELS, tiny_kernels
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.expr.nodes import (
    Binary,
    Expr,
    Load,
    add,
    binary,
    cast,
    const,
    index,
    integer,
    select,
)
from tunefarm.compiler.loops.ir import (
    Allocate,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Scope,
    Stmt,
    Store,
    Update,
)
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import naive_schedule, schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType

X, Y = Memory("x", DType.F32, (8,)), Memory("y", DType.F32, (8,))
AT = index("i")


def load(position: Expr = AT, buffer: str = "x") -> Expr:
    return Load(DType.F32, buffer, (position,))


def store(position: Expr = AT, value: Expr | None = None, buffer: str = "y") -> Stmt:
    return Store(buffer, (position,), value if value is not None else load())


def loop(
    *body: Stmt, variable: str = "i", extent: int = 8, kind: LoopKind = LoopKind.SERIAL
) -> Stmt:
    return For(variable, 0, extent, kind, body)


def allocate(*body: Stmt, scope: Scope = Scope.STACK, name: str = "t") -> Stmt:
    return Allocate(Memory(name, DType.F32, (8,)), scope, body)


NARROW = (Memory("a", DType.U8, (8, 4)), Memory("b", DType.I8, (4,)))


def dot(
    count: int = 4,
    variable: str = "d",
    buffer: str = "s",
    left: Expr | None = None,
    condition: Expr | None = None,
) -> Stmt:
    """s[i] += dot over d of a[i, d], b[d]; the left factor may be another or a choice."""
    at = index(variable)
    factor: Expr = left if left is not None else Load(DType.U8, "a", (AT, at))
    if condition is not None:
        factor = select(condition, factor, const(0, DType.U8))
    right = Load(DType.I8, "b", (at,))
    return Dot(buffer, (AT,), variable, count, factor, right)


def summed(*body: Stmt, dtype: DType = DType.I32) -> Stmt:
    return Allocate(Memory("s", dtype, (8,)), Scope.STACK, (loop(*body),))


def nest(*body: Stmt) -> LoopNest:
    return LoopNest("test", (X, *NARROW), Y, body)


J_LOOP = loop(store(), variable="j", extent=2)
IN_RANGE = binary("lt", AT, integer(7))
READ = cast(DType.I64, load())  # a place that is read from memory
OWN = binary("lt", index("at"), integer(8))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, a nest that keeps it and a nearly equal one that breaks it."""

    name: str
    kept: Stmt
    broken: Stmt
    problem: str


RULES = [
    Rule("variables are bound", loop(store()), store(), "i is not bound"),
    Rule(
        "variables are bound once",
        loop(J_LOOP),
        loop(loop(store())),
        "i is bound twice",
    ),
    Rule(
        "a let binds once, too",
        loop(Let("j", AT, (store(index("j")),))),
        loop(Let("i", integer(0), (store(),))),
        "i is bound twice",
    ),
    Rule(
        "a dot product has terms", summed(dot()), summed(dot(0)), "the dot product over d is empty"
    ),
    Rule(
        "a dot product binds its variable",
        summed(dot()),
        summed(dot(variable="i")),
        "i is bound twice",
    ),
    Rule(
        "a dot product reads what there is",
        summed(dot()),
        summed(dot(5)),
        "a: index 1 runs over 0..4, extent 4",
    ),
    Rule(
        "a dot product is written",
        summed(dot()),
        summed(dot(buffer="a")),
        "a is summed up in, but is no output or allocation",
    ),
    Rule(
        "sums are wider than factors",
        summed(dot()),
        summed(dot(), dtype=DType.U8),
        "a dot product of u8 is summed up in u8, which does not hold it",
    ),
    Rule(
        "integers are not summed up as floats",
        summed(dot()),
        summed(dot(), dtype=DType.F32),
        "a dot product of u8 is summed up in f32, which does not hold it",
    ),
    Rule(
        "factors are what is in memory",
        summed(dot()),
        summed(dot(left=add(Load(DType.U8, "a", (AT, integer(0))), const(1, DType.U8)))),
        "a factor of a dot product is computed",
    ),
    Rule(
        "factors are chosen by indices",
        summed(dot(condition=IN_RANGE)),
        summed(dot(condition=binary("lt", load(), const(0.0, DType.F32)))),
        "a factor of a dot product depends on data by more than its value",
    ),
    Rule("loops are not empty", loop(store()), loop(store(), extent=0), "loop i is empty"),
    Rule(
        "parallel loops are inside of serial ones at most",
        loop(loop(store(), variable="j", extent=2, kind=LoopKind.PARALLEL)),
        loop(loop(store(), variable="j", extent=2, kind=LoopKind.PARALLEL), kind=LoopKind.PARALLEL),
        "parallel loop j is inside another loop that is not serial",
    ),
    Rule(
        "threads share no memory of one of them",
        allocate(loop(store(), kind=LoopKind.PARALLEL), scope=Scope.WORKSPACE),
        allocate(loop(store(), kind=LoopKind.PARALLEL)),
        "parallel loop i is where t is of one thread",
    ),
    Rule(
        "vectors hold no loop",
        loop(
            loop(store(), variable="j", extent=2, kind=LoopKind.UNROLLED), kind=LoopKind.VECTORISED
        ),
        loop(J_LOOP, kind=LoopKind.VECTORISED),
        "vectorised loop round the for loop j",
    ),
    Rule(
        "workspace is allocated in serial loops at most",
        loop(allocate(store(), scope=Scope.WORKSPACE)),
        loop(allocate(store(), scope=Scope.WORKSPACE), kind=LoopKind.PARALLEL),
        "workspace t is allocated inside a loop that is not serial",
    ),
    Rule(
        "lanes of a vector share nothing",
        allocate(loop(store(), kind=LoopKind.VECTORISED)),
        loop(allocate(store()), kind=LoopKind.VECTORISED),
        "the lanes of a vectorised loop share t",
    ),
    Rule(
        "allocations do not nest under one name",
        allocate(allocate(loop(store()), name="u")),
        allocate(allocate(loop(store()))),
        "t is allocated inside of itself",
    ),
    Rule(
        "an allocation ends with its body",
        loop(allocate(store(buffer="t"), store(value=load(buffer="t")))),
        loop(allocate(store(buffer="t")), store(value=load(buffer="t"))),
        "t is not defined",
    ),
    Rule(
        "inputs are read only",
        loop(store()),
        loop(store(buffer="x")),
        "x is stored to, but is no output or allocation",
    ),
    Rule(
        "stores have the buffer's type",
        loop(store(value=const(1.0, DType.F32))),
        loop(store(value=const(1, DType.I32))),
        "y of f32 is given a i32",
    ),
    Rule(
        "combiners are known",
        loop(Update("y", (AT,), "sum", load())),
        loop(Update("y", (AT,), "average", load())),
        "unknown combiner 'average'",
    ),
    Rule(
        "accesses have an index per axis",
        loop(store()),
        loop(Store("y", (AT, AT), load())),
        "y has 1 axes, indexed with 2",
    ),
    Rule(
        "indices are i64",
        loop(store(cast(DType.I64, const(1, DType.I32)))),
        loop(store(const(1, DType.I32))),
        "y is indexed with a i32",
    ),
    Rule(
        "stores are in range",
        loop(store(add(AT, integer(1))), extent=7),
        loop(store(add(AT, integer(1)))),
        "y: index 0 runs over 1..8, extent 8",
    ),
    Rule(
        "loads are in range",
        loop(store(value=select(IN_RANGE, load(add(AT, integer(1))), const(0.0, DType.F32)))),
        loop(store(value=load(add(AT, integer(1))))),
        "x: index 0 runs over 1..8, extent 8",
    ),
    Rule(
        "a branch is a guard",
        loop(If(IN_RANGE, (store(add(AT, integer(1))),))),
        loop(store(add(AT, integer(1)))),
        "y: index 0 runs over 1..8, extent 8",
    ),
    Rule(
        "threads write to places of their own",
        loop(Let("at", READ, (If(OWN, (store(index("at")),)),))),
        loop(Let("at", READ, (If(OWN, (store(index("at")),)),)), kind=LoopKind.PARALLEL),
        "rounds of the parallel for loop i may write to one place of y, which is read from memory",
    ),
    Rule(
        "lanes write to places of their own",
        loop(store(READ)),
        loop(store(READ), kind=LoopKind.VECTORISED),
        "rounds of the vector for loop i may write to one place of y, which is read from memory",
    ),
    Rule(
        "conditions are bool",
        loop(If(IN_RANGE, (store(),))),
        loop(If(AT, (store(),))),
        "a condition has the type i64",
    ),
    Rule(
        "loads are of buffers",
        loop(store()),
        loop(store(value=load(buffer="z"))),
        "z is not defined",
    ),
    Rule(
        "loads have the buffer's type",
        loop(store()),
        loop(store(value=cast(DType.F32, Load(DType.F64, "x", (AT,))))),
        "x of f32 is loaded as f64",
    ),
    Rule(
        "operands have one type",
        loop(store(value=binary("add", load(), load()))),
        loop(store(value=Binary(DType.F32, "add", load(), const(1, DType.I32)))),
        "add of f32 and i32",
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name.replace(" ", "-"))
def test_a_rule_and_its_violation(rule: Rule) -> None:
    verify_loops(nest(rule.kept))
    with pytest.raises(VerifyError) as caught:
        verify_loops(nest(rule.broken))
    assert caught.value.message == f"loops of test: {rule.problem}"
    assert caught.value.program is not None and "kernel test(x: f32[8]" in caught.value.program


@pytest.mark.parametrize("lanes", [LANES, 8])
@pytest.mark.parametrize("name", tiny_kernels())
def test_every_lowered_schedule_is_accepted(name: str, lanes: int) -> None:
    kernel = tiny_kernels()[name]
    target = replace(host_target(), vector_bytes=4 * lanes, vector_registers=32)
    verify_loops(lower(kernel, naive_schedule()))
    for threads in (1, 2):
        space = schedule_space(kernel, target, threads)
        rng = random.Random(lanes)
        for candidate in (space.default(), *(space.sample(rng) for _ in range(5))):
            verify_loops(lower(kernel, space.schedule(candidate)))


@pytest.mark.parametrize("name", STEP_KERNELS)
def test_plain_loops_are_accepted(name: str) -> None:
    verify_loops(lower(STEP_KERNELS[name](), naive_schedule()))
