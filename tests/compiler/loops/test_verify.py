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


USUAL = loop(store())
J_LOOP = loop(store(), variable="j", extent=2)
IN_RANGE = binary("lt", AT, integer(7))
READ = cast(DType.I64, load())  # a place that is read from memory
OWN = binary("lt", index("at"), integer(8))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, a nest that keeps it and a nearly equal one that breaks it."""

    name: str
    problem: str
    broken: Stmt
    kept: Stmt = USUAL


RULES = [
    Rule("variables are bound", "i is not bound", store()),
    Rule("variables are bound once", "i is bound twice", loop(loop(store())), loop(J_LOOP)),
    Rule(
        "a let binds once, too",
        "i is bound twice",
        loop(Let("i", integer(0), (store(),))),
        loop(Let("j", AT, (store(index("j")),))),
    ),
    Rule(
        "a dot product has terms", "the dot product over d is empty", summed(dot(0)), summed(dot())
    ),
    Rule(
        "a dot product binds its variable",
        "i is bound twice",
        summed(dot(variable="i")),
        summed(dot()),
    ),
    Rule(
        "a dot product reads what there is",
        "a: index 1 runs over 0..4, extent 4",
        summed(dot(5)),
        summed(dot()),
    ),
    Rule(
        "a dot product is written",
        "a is summed up in, but is no output or allocation",
        summed(dot(buffer="a")),
        summed(dot()),
    ),
    Rule(
        "sums are wider than factors",
        "a dot product of u8 is summed up in u8, which does not hold it",
        summed(dot(), dtype=DType.U8),
        summed(dot()),
    ),
    Rule(
        "integers are not summed up as floats",
        "a dot product of u8 is summed up in f32, which does not hold it",
        summed(dot(), dtype=DType.F32),
        summed(dot()),
    ),
    Rule(
        "factors are what is in memory",
        "a factor of a dot product is computed",
        summed(dot(left=add(Load(DType.U8, "a", (AT, integer(0))), const(1, DType.U8)))),
        summed(dot()),
    ),
    Rule(
        "factors are chosen by indices",
        "a factor of a dot product depends on data by more than its value",
        summed(dot(condition=binary("lt", load(), const(0.0, DType.F32)))),
        summed(dot(condition=IN_RANGE)),
    ),
    Rule("loops are not empty", "loop i is empty", loop(store(), extent=0)),
    Rule(
        "parallel loops are inside of serial ones at most",
        "parallel loop j is inside another loop that is not serial",
        loop(loop(store(), variable="j", extent=2, kind=LoopKind.PARALLEL), kind=LoopKind.PARALLEL),
        loop(loop(store(), variable="j", extent=2, kind=LoopKind.PARALLEL)),
    ),
    Rule(
        "threads share no memory of one of them",
        "parallel loop i is where t is of one thread",
        allocate(loop(store(), kind=LoopKind.PARALLEL)),
        allocate(loop(store(), kind=LoopKind.PARALLEL), scope=Scope.WORKSPACE),
    ),
    Rule(
        "vectors hold no loop",
        "vectorised loop round the for loop j",
        loop(J_LOOP, kind=LoopKind.VECTORISED),
        loop(
            loop(store(), variable="j", extent=2, kind=LoopKind.UNROLLED), kind=LoopKind.VECTORISED
        ),
    ),
    Rule(
        "workspace is allocated in serial loops at most",
        "workspace t is allocated inside a loop that is not serial",
        loop(allocate(store(), scope=Scope.WORKSPACE), kind=LoopKind.PARALLEL),
        loop(allocate(store(), scope=Scope.WORKSPACE)),
    ),
    Rule(
        "lanes of a vector share nothing",
        "the lanes of a vectorised loop share t",
        loop(allocate(store()), kind=LoopKind.VECTORISED),
        allocate(loop(store(), kind=LoopKind.VECTORISED)),
    ),
    Rule(
        "allocations do not nest under one name",
        "t is allocated inside of itself",
        allocate(allocate(loop(store()))),
        allocate(allocate(loop(store()), name="u")),
    ),
    Rule(
        "an allocation ends with its body",
        "t is not defined",
        loop(allocate(store(buffer="t")), store(value=load(buffer="t"))),
        loop(allocate(store(buffer="t"), store(value=load(buffer="t")))),
    ),
    Rule(
        "inputs are read only",
        "x is stored to, but is no output or allocation",
        loop(store(buffer="x")),
    ),
    Rule(
        "stores have the buffer's type",
        "y of f32 is given a i32",
        loop(store(value=const(1, DType.I32))),
        loop(store(value=const(1.0, DType.F32))),
    ),
    Rule(
        "combiners are known",
        "unknown combiner 'average'",
        loop(Update("y", (AT,), "average", load())),
        loop(Update("y", (AT,), "sum", load())),
    ),
    Rule(
        "accesses have an index per axis",
        "y has 1 axes, indexed with 2",
        loop(Store("y", (AT, AT), load())),
    ),
    Rule(
        "indices are i64",
        "y is indexed with a i32",
        loop(store(const(1, DType.I32))),
        loop(store(cast(DType.I64, const(1, DType.I32)))),
    ),
    Rule(
        "stores are in range",
        "y: index 0 runs over 1..8, extent 8",
        loop(store(add(AT, integer(1)))),
        loop(store(add(AT, integer(1))), extent=7),
    ),
    Rule(
        "loads are in range",
        "x: index 0 runs over 1..8, extent 8",
        loop(store(value=load(add(AT, integer(1))))),
        loop(store(value=select(IN_RANGE, load(add(AT, integer(1))), const(0.0, DType.F32)))),
    ),
    Rule(
        "a branch is a guard",
        "y: index 0 runs over 1..8, extent 8",
        loop(store(add(AT, integer(1)))),
        loop(If(IN_RANGE, (store(add(AT, integer(1))),))),
    ),
    Rule(
        "threads write to places of their own",
        "rounds of the parallel for loop i may write to one place of y, which is read from memory",
        loop(Let("at", READ, (If(OWN, (store(index("at")),)),)), kind=LoopKind.PARALLEL),
        loop(Let("at", READ, (If(OWN, (store(index("at")),)),))),
    ),
    Rule(
        "lanes write to places of their own",
        "rounds of the vector for loop i may write to one place of y, which is read from memory",
        loop(store(READ), kind=LoopKind.VECTORISED),
        loop(store(READ)),
    ),
    Rule(
        "conditions are bool",
        "a condition has the type i64",
        loop(If(AT, (store(),))),
        loop(If(IN_RANGE, (store(),))),
    ),
    Rule("loads are of buffers", "z is not defined", loop(store(value=load(buffer="z")))),
    Rule(
        "loads have the buffer's type",
        "x of f32 is loaded as f64",
        loop(store(value=cast(DType.F32, Load(DType.F64, "x", (AT,))))),
    ),
    Rule(
        "operands have one type",
        "add of f32 and i32",
        loop(store(value=Binary(DType.F32, "add", load(), const(1, DType.I32)))),
        loop(store(value=binary("add", load(), load()))),
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
