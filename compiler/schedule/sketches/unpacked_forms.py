"""Forms of products with packed weights that unpack a tile's weights before its sums.

The tile's floats stay in the caches while all rows are multiplied with them; in registers they
would be unpacked again for every few rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.roles import with_roles
from tunefarm.compiler.kernels.unpack_weights import UNPACKED
from tunefarm.compiler.kernels.weight_words import WORD, word_product
from tunefarm.compiler.schedule.sketches.borders import borders
from tunefarm.compiler.schedule.sketches.roles import roles_of
from tunefarm.compiler.schedule.sketches.tile_forms import TileForm, prepared
from tunefarm.compiler.schedule.steps.kernel_forms import MergeAxes, UnpackWeights
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.packing import PackLayout, PackStage
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES, ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Partition, Reorder

FEWEST_ROWS = 4  # that use each float: below, unpacking in registers is never slower


def unpacked_forms(forms: Sequence[TileForm], lanes: int) -> list[TileForm]:
    """Those of the forms whose weights can be unpacked before they are multiplied."""
    made = [_unpacked(form, lanes) for form in forms if _may_unpack(form, lanes)]
    return [form for form in made if form is not None]


def _may_unpack(form: TileForm, lanes: int) -> bool:
    """Vectors along whole columns, many rows, and nothing computed before the product."""
    kernel = form.kernel
    if form.name != "tiled" or form.copies or form.held is not None:
        return False
    product = word_product(kernel)
    if product is None or kernel.stages[0] is not product.stage:
        return False
    if not all(isinstance(step, MergeAxes) for step in form.steps):
        return False
    *rows, column = product.stage.axes
    return (
        form.roles.vector == column.name
        and column.extent >= lanes
        and rows[-1].extent >= FEWEST_ROWS
        and product.inner * lanes * 4 <= STACK_BYTES
    )


def _unpacked(form: TileForm, lanes: int) -> TileForm | None:
    made = (UnpackWeights(), PackStage(UNPACKED, ((2, lanes),), (2, 0, 1, 3)))
    kernel = with_roles(prepared(form.kernel, made), lanes)
    roles = roles_of(kernel)
    if roles is None:
        return None
    steps = (*form.steps, *made)
    return TileForm("tiled_unpacked", kernel, steps, roles, (UNPACKED,), unpacked=UNPACKED)


def unpacking_steps(form: TileForm, columns: int, loop: str, prefetch: int) -> list[Step]:
    """The steps that unpack a tile's weights in vectors, in the output's loop over tiles.

    Constants hold so many `columns`, those of a tile, side by side. Words are asked for so many
    elements ahead, if `prefetch` is not 0.
    """
    kernel, name = form.kernel, form.unpacked
    blocks, words, places, lane = (axis.name for axis in kernel.stage(name).axes)
    read = loads(kernel.stage(name).body)
    (packed,) = {load.buffer for load in read if load.dtype is WORD}
    constants = sorted({load.buffer for load in read})
    cuts = borders(kernel.stage(name).body, kernel.stage(name).axes[0])  # behind the last column
    return [
        *(PackLayout(buffer, ((1, columns),), (1, 0, 2)) for buffer in constants),
        *([Prefetch(packed, prefetch)] if prefetch else []),
        Reorder(name, (words, blocks, places, lane)),
        *([Partition(name, blocks, 0, 0, cuts)] if cuts else []),
        Unroll(name, places),
        Vectorize(name, lane),
        ComputeAt(name, kernel.output.name, loop),
    ]
