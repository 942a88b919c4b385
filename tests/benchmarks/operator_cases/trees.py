"""Ensembles of trees, grown by leaves as LightGBM does, or level by level as XGBoost does.

Those of CatBoost have the same test in all nodes of a level.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.benchmarks.operator_cases.case import CaseBuilder, OperatorCase

_FEATURES = 30
# trees, leaves, how they grow
_ENSEMBLES = (
    (200, 31, "by leaves"),
    (200, 63, "by leaves"),
    (200, 8, "by depth"),
    (200, 64, "by depth"),
    (200, 64, "symmetric"),
)


def cases() -> Iterator[OperatorCase]:
    """All cases of the file."""
    for trees, leaves, growth in _ENSEMBLES:
        for rows in (1, 7, 1000):
            name = f"{trees} trees of {leaves} leaves {growth}: {rows}x{_FEATURES}"
            yield OperatorCase("trees", name, _Ensemble(trees, leaves, growth, rows))


class _Ensemble:
    """A sum of trees whose leaves are split at random, or the shallowest first."""

    def __init__(self, trees: int, leaves: int, growth: str, rows: int) -> None:
        self.trees, self.leaves, self.rows = trees, leaves, rows
        self.by_leaves, self.is_symmetric = growth == "by leaves", growth == "symmetric"

    def __call__(self, net: CaseBuilder) -> str:
        random = np.random.default_rng(self.leaves)
        nodes: list[tuple[int, int, int, float, str, int, int]] = []
        votes: list[tuple[int, int, int, float]] = []
        for tree in range(self.trees):
            children, ends = self._grown(random)
            tests: dict[int, tuple[int, float]] = {}
            for node in range(2 * self.leaves - 1):
                inner = node in children
                # what most rows pass, as where growing by leaves goes on
                center = 0.8 if self.by_leaves else 0.0
                test = int(random.integers(_FEATURES)), float(random.normal(center, 0.6))
                level = (node + 1).bit_length() if self.is_symmetric else node
                feature, threshold = tests.setdefault(level, test)
                mode = "BRANCH_LEQ" if inner else "LEAF"
                sides = children.get(node, (0, 0))
                nodes.append((tree, node, feature, threshold, mode, *sides))
            votes += [(tree, leaf, 0, float(random.standard_normal())) for leaf in ends]
        names = "treeids nodeids featureids values modes truenodeids falsenodeids".split()
        columns = {f"nodes_{n}": [*v] for n, v in zip(names, zip(*nodes, strict=True), strict=True)}
        names = "treeids nodeids ids weights".split()
        for name, values in zip(names, zip(*votes, strict=True), strict=True):
            columns[f"target_{name}"] = [*values]
        data = net.input(self.rows, _FEATURES)
        return net.node("TreeEnsembleRegressor", data, domain="ai.onnx.ml", n_targets=1, **columns)

    def _grown(self, random: np.random.Generator) -> tuple[dict[int, tuple[int, int]], list[int]]:
        """The children of each inner node, and the leaves."""
        children: dict[int, tuple[int, int]] = {}
        ends, count = [0], 1
        while len(ends) < self.leaves:
            # mostly one of the two latest leaves, or the oldest
            at = len(ends) - 1 - int(random.geometric(0.4)) % len(ends) if self.by_leaves else 0
            node = ends.pop(at)
            children[node] = (count, count + 1)
            ends += [count, count + 1]
            count += 2
        return children, ends
