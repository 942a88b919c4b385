"""What the solver says is the best is the best, and its bounds are bounds."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.plan.drawn_problems import (
    Edges,
    assignments,
    chain,
    dense,
    grid,
    inception,
    layout_like,
    residual,
    skipping,
    tree,
    uniform,
)
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.solving.factors import Factors
from tunefarm.compiler.plan.solving.integer_program import solve_program
from tunefarm.compiler.plan.solving.solver import (
    ChoiceProblem,
    solve,
)

CORES = 0
"""No table is small enough: whatever has three neighbours and more is left."""


def numbers(inf: bool = True) -> st.SearchStrategy[float]:
    """Costs, many of them equal, some negative, some impossible."""
    some = st.integers(-4, 12).map(float) | st.floats(0, 1e3) | st.floats(0, 1e-5)
    return some | st.just(np.inf) if inf else some


@st.composite
def problems(draw: st.DrawFn, inf: bool = True) -> ChoiceProblem:
    count = draw(st.integers(1, 6))
    sizes = [draw(st.integers(1, 3)) for _ in range(count)]
    costs = {
        f"v{at}": {f"c{i}": draw(numbers(inf)) for i in range(size)}
        for at, size in enumerate(sizes)
    }
    every = [(a, b) for a in range(count) for b in range(count) if a != b]
    edges = draw(st.lists(st.sampled_from(every), max_size=12)) if every else []
    pairs = [
        (f"v{a}", f"v{b}", [[draw(numbers(inf)) for _ in range(sizes[b])] for _ in range(sizes[a])])
        for a, b in edges
    ]
    return ChoiceProblem.of(costs, pairs)


def least(problem: ChoiceProblem) -> float:
    return min(problem.cost_of(chosen) for chosen in assignments(problem))


def of(left: float) -> float:
    """How near to a cost another one is the same."""
    return 1e-6 * abs(left) + 1e-9


@pytest.mark.parametrize("largest_table", [CORES, 1 << 19])
@settings(max_examples=120, deadline=None)
@given(problem=problems())
def test_optimal_solutions_are_and_bounds_hold(largest_table: int, problem: ChoiceProblem) -> None:
    best = least(problem)
    if np.isinf(best):
        with pytest.raises(PlanError, match=r"contradict each other|is possible"):
            solve(problem, largest_table=largest_table)
        return
    solution = solve(problem, largest_table=largest_table)
    assert solution.cost == pytest.approx(problem.cost_of(solution.positions))
    assert solution.bound <= best + of(best)
    assert solution.is_optimal or largest_table == CORES
    if solution.is_optimal:
        assert solution.cost <= best + of(best)
    for name, candidates, position in zip(
        problem.names, problem.candidates, solution.positions, strict=True
    ):
        assert solution.chosen[name] == candidates[position]


GRAPHS: dict[str, Edges] = {
    "unary": [],
    "chain": chain(28),
    "tree": tree(28, np.random.default_rng(2)),
    "residual": residual(28),
    "inception": inception(28),
    "skipping": skipping(28),
    "narrow grid": grid(28),
}


@pytest.mark.parametrize("shape", GRAPHS)
def test_graphs_of_models_are_solved_exactly(shape: str) -> None:
    problem = layout_like(GRAPHS[shape], 28, 4, seed=3)
    solution = solve(problem)
    assert solution.is_optimal and solution.found_by == "elimination"
    program = solve_program(Factors.of_problem(problem), 20.0)
    assert program is not None
    assert solution.cost == pytest.approx(program.cost, rel=1e-5)


@pytest.mark.parametrize("draw", [layout_like, uniform])
@pytest.mark.parametrize("seed", range(3))
def test_cores_have_a_bound_and_are_near_it(draw, seed: int) -> None:  # type: ignore[no-untyped-def]
    edges = dense(24, 60, np.random.default_rng(seed))
    problem = draw(edges, 24, 3, seed)
    exact, found = solve(problem), solve(problem, largest_table=CORES)
    assert exact.is_optimal
    assert found.bound <= exact.cost <= found.cost * (1 + 1e-9)
    assert found.cost <= exact.cost * 1.01


def test_what_messages_leave_is_solved_by_the_integer_program() -> None:
    problem = uniform(dense(20, 60, np.random.default_rng(7)), 20, 3, 7)
    found = solve(problem, largest_table=CORES)
    assert found.is_optimal and found.found_by == "integer program"
    assert found.cost == pytest.approx(solve(problem).cost, rel=1e-6)


def test_without_scipy_or_time_the_best_of_messages_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = uniform(dense(20, 60, np.random.default_rng(7)), 20, 3, 7)
    best = solve(problem).cost
    without_time = solve(problem, seconds=0.0, largest_table=CORES)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    without_scipy = solve(problem, largest_table=CORES)
    assert without_scipy.positions == without_time.positions
    assert without_scipy.bound < best <= without_scipy.cost < 1.1 * best
    assert not without_scipy.is_optimal and without_scipy.found_by == "messages"


def test_a_large_problem_is_solved_the_same_way_twice() -> None:
    edges = residual(300)
    problem = layout_like(edges, 300, 8, seed=5)
    first, second = solve(problem), solve(problem)
    assert first.positions == second.positions and first.cost == second.cost


def test_of_equal_candidates_the_first_is_chosen() -> None:
    problem = ChoiceProblem.of({"a": {"x": 1.0, "y": 1.0}, "b": {"x": 2.0, "y": 2.0}})
    assert dict(solve(problem).chosen) == {"a": "x", "b": "x"}


def test_costs_of_one_pair_are_added_whichever_is_named_first() -> None:
    costs = {"a": {"x": 0.0, "y": 1.0}, "b": {"x": 0.0, "y": 0.0, "z": 3.0}}
    problem = ChoiceProblem.of(
        costs, [("a", "b", [[4, 5, 6], [1, 2, 3]]), ("b", "a", [[0, 7], [0, 0], [-5, 0]])]
    )
    assert problem.cost_of((0, 2)) == 0 + 3 + 6 - 5
    assert dict(solve(problem).chosen) == {"a": "y", "b": "y"}


def test_variables_that_contradict_are_named_and_no_others() -> None:
    costs = {name: {"x": 0.0, "y": 1.0} for name in "abcdefgh"}
    same, other = [[0, np.inf], [np.inf, 0]], [[np.inf, 0], [0, np.inf]]
    pairs = [(a, b, same) for a, b in zip("abcdefg", "bcdefgh", strict=True)]
    assert solve(ChoiceProblem.of(costs, pairs)).cost == 0
    with pytest.raises(PlanError, match=r"^'b', 'c', 'd' contradict each other$"):
        solve(ChoiceProblem.of(costs, [*pairs, ("d", "b", other)]))


def test_a_variable_without_a_possible_candidate_is_named() -> None:
    costs = {"a": {"x": 0.0}, "b": {"x": np.inf, "y": np.inf}}
    with pytest.raises(PlanError, match=r"^no candidate of 'b' is possible$"):
        solve(ChoiceProblem.of(costs))


def test_cores_that_contradict_are_found() -> None:
    """Four that all differ, of three candidates each."""
    costs = {name: {"x": 0.0, "y": 0.0, "z": 0.0} for name in "abcdef"}
    differ = np.where(np.eye(3, dtype=bool), np.inf, 0.0)
    pairs = [(a, b, differ) for a in "abcd" for b in "abcd" if a < b]
    with pytest.raises(PlanError, match=r"^'a', 'b', 'c', 'd' contradict each other$"):
        solve(ChoiceProblem.of(costs, pairs), largest_table=CORES)


@pytest.mark.parametrize(
    ("costs", "pairs", "said"),
    [
        ({"a": {}}, [], "'a' has no candidate"),
        ({"a": {"x": np.nan}}, [], "the costs of a are not all numbers"),
        ({"a": {"x": -np.inf}}, [], "the costs of a are not all numbers"),
        ({"a": {"x": 0}}, [("a", "a", [[0]])], "'a' is paired with itself"),
        ({"a": {"x": 0}}, [("a", "b", [[0]])], "'b' is no variable"),
        ({"a": {"x": 0}, "b": {"x": 0}}, [("a", "b", [0])], r"costs \(1,\), not \(1, 1\)"),
    ],
)
def test_what_is_no_problem_is_refused(costs, pairs, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanError, match=said):
        ChoiceProblem.of(costs, pairs)


def test_nothing_to_choose_costs_nothing() -> None:
    solution = solve(ChoiceProblem.of({}))
    assert solution.cost == 0 and solution.is_optimal and not solution.chosen
