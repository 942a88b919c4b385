"""What the solver says is the best is the best, by elimination and by the integer program."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.choices.solver import ChoiceProblem, solve

Edges = list[tuple[int, int]]


def costs() -> st.SearchStrategy[float]:
    """Many of them equal, some negative, some impossible, some of microseconds."""
    some = st.integers(-4, 12).map(float) | st.floats(0, 1e3) | st.floats(0, 1e-5)
    return some | st.just(np.inf)


@st.composite
def problems(draw: st.DrawFn, most_pairs: int) -> ChoiceProblem:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    unary = {
        f"v{at}": {f"c{i}": draw(costs()) for i in range(size)} for at, size in enumerate(sizes)
    }
    every = [(a, b) for a in range(len(sizes)) for b in range(len(sizes)) if a != b]
    edges = draw(st.lists(st.sampled_from(every), max_size=most_pairs)) if every else []
    pairs = [
        (f"v{a}", f"v{b}", [[draw(costs()) for _ in range(sizes[b])] for _ in range(sizes[a])])
        for a, b in edges
    ]
    return ChoiceProblem.of(unary, pairs)


def drawn(edges: Edges, candidates: int, seed: int) -> ChoiceProblem:
    """All costs are drawn alike, those of pairs too: nothing is near anything."""
    rng = np.random.default_rng(seed)
    variables = sorted({each for edge in edges for each in edge})
    shape = (candidates, candidates)
    return ChoiceProblem.of(
        {str(v): {f"c{i}": rng.uniform() for i in range(candidates)} for v in variables},
        [(str(a), str(b), rng.uniform(size=shape)) for a, b in edges],
    )


def least(problem: ChoiceProblem) -> float:
    """The minimum cost, by looking at all assignments."""
    every = product(*problem.candidates)
    return min(problem.cost_of(dict(zip(problem.names, each, strict=True))) for each in every)


def complete(variables: int) -> Edges:
    """Each depends on all others: nothing is eliminated."""
    return [(a, b) for b in range(variables) for a in range(b)]


@pytest.mark.parametrize("most_pairs", [5, 15])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_no_assignment_costs_less(most_pairs: int, data: st.DataObject) -> None:
    problem = data.draw(problems(most_pairs))
    best = least(problem)
    if np.isinf(best):
        with pytest.raises(PlanError, match="no assignment"):
            solve(problem)
        return
    assert problem.cost_of(solve(problem)) <= best + 1e-6 * abs(best) + 1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("variables", [4, 7])
def test_variables_with_many_neighbours_are_an_integer_program(variables: int, seed: int) -> None:
    problem = drawn(complete(variables), 3, seed)
    assert problem.cost_of(solve(problem)) == pytest.approx(least(problem))


def test_costs_of_microseconds_are_told_apart() -> None:
    """Tolerances of the integer program are absolute."""
    problem = drawn(complete(5), 3, seed=4)
    small = ChoiceProblem(
        problem.names,
        problem.candidates,
        tuple(1e-9 * each for each in problem.costs),
        {key: 1e-9 * table for key, table in problem.pairs.items()},
    )
    assert solve(small) == solve(problem)


def test_chains_with_joins_need_no_integer_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    edges = [(at, at + 1) for at in range(299)] + [(at, at + 4) for at in range(0, 296, 4)]
    problem = drawn(edges, 4, seed=5)
    found = solve(problem)
    assert found == solve(problem)
    for name in problem.names[:40]:  # no single change is better
        for candidate in "c0", "c1", "c2", "c3":
            changed = problem.cost_of({**found, name: candidate})
            assert changed >= problem.cost_of(found) - 1e-9


def test_of_equal_candidates_the_first_is_chosen() -> None:
    problem = ChoiceProblem.of({"a": {"x": 1.0, "y": 1.0}, "b": {"x": 2.0, "y": 2.0}})
    assert solve(problem) == {"a": "x", "b": "x"}


def test_costs_of_one_pair_are_added_whichever_is_named_first() -> None:
    unary = {"a": {"x": 0.0, "y": 1.0}, "b": {"x": 0.0, "y": 0.0, "z": 3.0}}
    problem = ChoiceProblem.of(
        unary, [("a", "b", [[4, 5, 6], [1, 2, 3]]), ("b", "a", [[0, 7], [0, 0], [-5, 0]])]
    )
    assert problem.cost_of({"a": "x", "b": "z"}) == 0 + 3 + 6 - 5
    assert solve(problem) == {"a": "y", "b": "y"}


def test_a_variable_without_a_possible_candidate_is_refused() -> None:
    unary = {"a": {"x": 0.0}, "b": {"x": np.inf, "y": np.inf}}
    with pytest.raises(PlanError, match="no assignment is possible"):
        solve(ChoiceProblem.of(unary))


def test_four_that_all_differ_of_three_candidates_are_refused() -> None:
    unary = {name: {"x": 0.0, "y": 0.0, "z": 0.0} for name in "abcdef"}
    differ = np.where(np.eye(3, dtype=bool), np.inf, 0.0)
    pairs = [(a, b, differ) for a in "abcd" for b in "abcd" if a < b]
    with pytest.raises(PlanError, match="no assignment was found"):
        solve(ChoiceProblem.of(unary, pairs))


@pytest.mark.parametrize(
    ("unary", "pairs", "said"),
    [
        ({"a": {}}, [], r"the costs of a are \(0,\), not \(1,\)"),
        ({"a": {"x": np.nan}}, [], "the costs of a are not all numbers"),
        ({"a": {"x": -np.inf}}, [], "the costs of a are not all numbers"),
        ({"a": {"x": 0}, "b": {"x": 0}}, [("a", "b", [0])], r"costs of a, b are \(1,\), not"),
    ],
)
def test_what_is_no_problem_is_refused(unary, pairs, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanError, match=said):
        ChoiceProblem.of(unary, pairs)


def test_nothing_to_choose_costs_nothing() -> None:
    problem = ChoiceProblem.of({})
    assert solve(problem) == {} and problem.cost_of({}) == 0
