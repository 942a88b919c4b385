"""How long the solver takes for 1,000 variables of 8 candidates, and how far it is from the best.

    python -m tests.benchmarks.plan_solver [--variables 1000] [--candidates 8] [--program 60]

A row for each shape of graph and kind of costs: seconds of `solve` (the median of three), its cost
over its own bound, how it was found, and its cost over what the integer program of the whole
problem finds within `--program` seconds (0: it is not asked), and whether that was solved.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np

from tests.compiler.plan.drawn_problems import (
    Edges,
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
from tunefarm.compiler.plan.solving.factors import Factors
from tunefarm.compiler.plan.solving.integer_program import solve_program
from tunefarm.compiler.plan.solving.solver import ChoiceProblem, Solution, solve


def graphs(variables: int) -> dict[str, Edges]:
    """The graphs by name."""
    rng = np.random.default_rng(1)
    return {
        "chain": chain(variables),
        "tree": tree(variables, rng),
        "residual": residual(variables),
        "inception": inception(variables),
        "skipping": skipping(variables),
        "sparse": dense(variables, variables * 6 // 5, rng),
        "grid": grid(variables),
        "dense": dense(variables, 2 * variables, rng),
    }


def timed(problem: ChoiceProblem, seconds: float) -> tuple[float, Solution]:
    """The median seconds of three solutions, and the last."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        solution = solve(problem, seconds)
        taken.append(time.perf_counter() - start)
    return median(taken), solution


def of_program(problem: ChoiceProblem, solution: Solution, seconds: float) -> str:
    """The solution's cost over the integer program's, and what is known of that."""
    start = time.perf_counter()
    found = solve_program(Factors.of_problem(problem), seconds) if seconds else None
    taken = time.perf_counter() - start
    if found is None:
        return "-"
    state = "optimal" if found.bound >= found.cost * (1 - 1e-6) else "out of time"
    return f"{solution.cost / found.cost:.5f}  {taken:.1f} s, {state}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variables", type=int, default=1000)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--program", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=0.5, help="for our own integer program")
    given = parser.parse_args()
    print("graph      costs     seconds  cost/bound  found by         cost/program's")
    for name, edges in graphs(given.variables).items():
        for kind, draw in (("layouts", layout_like), ("uniform", uniform)):
            problem = draw(edges, given.variables, given.candidates, 1)
            seconds, solution = timed(problem, given.seconds)
            print(
                f"{name:10} {kind:9} {seconds:7.3f}  {solution.cost / solution.bound:10.5f}"
                f"  {solution.found_by:15}  {of_program(problem, solution, given.program)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
