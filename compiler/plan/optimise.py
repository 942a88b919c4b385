"""From a model's graph to the one that kernels are extracted from: its passes and the layouts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from tunefarm.compiler.graph import fold_quantised, recurrent_weights, weight_products
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.passes import (
    GraphPass,
    Observe,
    after_layouts,
    before_layouts,
    before_types,
    plain,
    run_passes,
)
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan import (
    dilated_convolutions,
    interleaved_channels,
    share_memory,
    transposed_convolutions,
)
from tunefarm.compiler.plan.fusion import split_moves
from tunefarm.compiler.plan.layouts import choose_layouts, rows_as_planes
from tunefarm.compiler.plan.precision import choose_precision, spread_dequantised
from tunefarm.compiler.plan.sizes import cut_windows, place_fills, trim_sums
from tunefarm.compiler.schedule.fixed_order import common_target
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, STRICT_NUMERICS, Numerics


@dataclass(frozen=True, slots=True)
class Abilities:
    """What of a target decides about its graphs.

    `activations` is the type in which it multiplies 8-bit data with weights, `states` are those of
    hidden states of one row and of several, `summed` the narrow floats whose products it has
    instructions to sum,
    `cached` the bytes of recurrent weights up to which it reads floats faster than integers,
    `row_bytes` those of a row of its matrix tiles, `tiled` the narrow floats that these multiply.
    """

    activations: DType = DType.U8
    summed: Collection[DType] = choose_precision.NARROW
    states: tuple[DType, DType] = (DType.U8, DType.U8)
    cached: int = 0
    row_bytes: int = 0
    tiled: Collection[DType] = ()

    @staticmethod
    def of(target: Target) -> Abilities:
        """Those of a target."""
        narrow, tiles = choose_precision.NARROW, target.matrix_tiles
        return Abilities(
            activations=target.activations,
            summed=[dtype for dtype in narrow if target.dot_products(dtype, dtype, DType.F32)],
            states=(target.states(1), target.states(2)),
            cached=target.cached_weights,
            row_bytes=tiles.row_bytes if tiles else 0,
            tiled=[dtype for dtype in narrow if target.multiplies_tiles(dtype)],
        )


# Long: the passes of a build are one flat list, in order.
def passes(
    block: int | None,
    numerics: Numerics = DEFAULT_NUMERICS,
    can: Abilities = Abilities(),
) -> tuple[tuple[str, GraphPass], ...]:
    """Name and pass, in order, for a target with vectors of `block` elements that `can` do so much,
    to be run once."""
    summed, tiled = can.summed, can.tiled
    folded = plain(lambda graph: fold_quantised.run(graph, can.activations, can.states))
    denormals = numerics.denormals
    is_strict = numerics.name == STRICT_NUMERICS.name
    types = () if is_strict else (("fold_quantised", folded),)
    transposed = plain(lambda graph: transposed_convolutions.run(graph, block))
    is_direct = is_strict or numerics.narrow is not None
    dilated = plain(lambda graph: dilated_convolutions.run(graph, block, is_direct))
    interleaved = plain(lambda graph: interleaved_channels.run(graph, can.row_bytes, numerics))
    layouts = plain(lambda graph: choose_layouts.run(graph, block))
    precision = partial(choose_precision.run, numerics=numerics, summed=summed, tiled=tiled)
    planned = (
        ("rows_as_planes", plain(lambda graph: rows_as_planes.run(graph, block))),
        ("widen_convolutions", plain(lambda graph: choose_precision.widen(graph, summed))),
        ("transposed_convolutions", transposed),
        ("dilated_convolutions", dilated),
        ("interleaved_channels", interleaved),
        ("cut_windows", plain(cut_windows.run)),
        ("choose_layouts", layouts),
    )
    spread = (
        ("spread_dequantised", plain(spread_dequantised.run)),
        ("place_fills", plain(place_fills.run)),
    )
    # What is cast is decided of the final layouts, and every reader keeps a cast of its own.
    stored = (
        ("choose_precision", precision),
        ("trim_sums", plain(trim_sums.run)),
        ("share_memory", plain(share_memory.run)),
        ("split_moves", split_moves.run),
    )
    halves = numerics if numerics.narrow in summed else None
    packs = plain(lambda graph: weight_products.run(graph, is_strict, halves))
    weights = (
        ("weight_products", packs),
        ("recurrent_weights", plain(lambda graph: recurrent_weights.run(graph, can.cached))),
    )
    before = (*types, *weights, *before_layouts(summed, numerics.rounds_each, denormals, tiled))
    first, after = before_types(denormals), after_layouts(denormals)
    return *first, *before, *planned, *after, *spread, *stored


PASS_NAMES = tuple(name for name, _ in passes(None))


def optimise(
    graph: Graph,
    block: int | None,
    observe: Observe | None = None,
    allowance: ResourceBudget | None = None,
    numerics: Numerics = DEFAULT_NUMERICS,
    can: Abilities = Abilities(),
) -> Graph:
    """The graph that kernels are extracted from, with the same inputs, outputs and meaning.

    `block` is the number of f32 lanes of the target, the block of blocked layouts; None keeps all
    data in NCHW. `numerics` say what is stored in narrower types, `can` what the target has
    instructions for. `observe` is called with the name and result of every pass. Raises
    `VerifyError` if the graph, or the result of a pass, breaks a rule, and `LimitError` for what
    goes beyond the `allowance` (this machine's if None).
    """
    found = passes(block, numerics, can)
    return run_passes(graph, found, observe, allowance or ResourceBudget())


def optimise_for(
    graph: Graph,
    target: Target,
    observe: Observe | None = None,
    allowance: ResourceBudget | None = None,
    numerics: Numerics = DEFAULT_NUMERICS,
) -> Graph:
    """`optimise` with what a target has: its lanes and its instructions for narrow types.

    A precision that fixes the order of sums has one graph for all CPUs of the target's family.
    """
    if numerics.fixes_order:
        target = common_target(target)
    block, can = target.lanes(DType.F32), Abilities.of(target)
    return optimise(graph, block, observe, allowance, numerics, can)
