"""Small models that between them have all that a manifest can say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.runtime.sized_graphs import counted_graph, rows_graph
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.artefact.write_artefact import save
from tunefarm.compiler.target import baseline_target, host_target
from tunefarm.compiler.types.dtypes import DType


def save_models(folder: Path) -> list[Path]:
    """Build them into the folder; their files."""
    target = host_target()
    net = _network()
    portable = compile_model(net, target=baseline_target(target), fallback=True).spec
    save(compile_model(net, target=target).spec, folder / "two variants.tuned", [portable])
    save(compile_model(_wide(), target=target, threads=2).spec, folder / "threads.tuned")
    save(compile_model(_types(), target=target).spec, folder / "types.tuned")
    save(compile_model(_copies(), target=target).spec, folder / "copies.tuned")
    save(compile_model(rows_graph(), target=target).spec, folder / "sizes.tuned")
    save(compile_model(counted_graph(), target=target).spec, folder / "computed sizes.tuned")
    return sorted(folder.glob("*.tuned"))


def _network() -> Graph:
    """Steps in a row, some with a workspace, and constants of one type."""
    maker = GraphMaker()
    value = maker.input(2, 24)
    for _ in range(3):
        value = maker.node("relu", maker.node("matmul", value, maker.weights(24, 24)))
    return maker.graph(value, maker.node("softmax", value, axis=1))


def _wide() -> Graph:
    """A parallel loop."""
    maker = GraphMaker()
    value = maker.node("matmul", maker.input(64, 128), maker.weights(128, 128))
    return maker.graph(maker.node("exp", value))


def _types() -> Graph:
    """Ports of several element types and ranks, down to a scalar."""
    maker = GraphMaker()
    outputs = [
        maker.node("add", maker.input(3, 5, dtype=dtype), maker.input(5, dtype=dtype))
        for dtype in (DType.F32, DType.F64, DType.I32, DType.I64)
    ]
    outputs.append(maker.node("neg", maker.input()))
    return maker.graph(*outputs)


def _copies() -> Graph:
    """Outputs that are an input, a constant, and a value that is read again."""
    maker = GraphMaker()
    value = maker.input(3, 7)
    constant = maker.constant(np.arange(12, dtype=np.int64).reshape(3, 4))
    total = maker.node("add", value, maker.weights(7))
    return maker.graph(value, constant, total, maker.node("exp", total))
