"""Logits of the last positions alone, for a model that computes those of all.

`logits_to_keep` is an input of decoders that are exported with it (transformers names it so). Given
for a model without one, it stands for a Slice behind the output of logits; the graph then moves
the selection to where rows are computed apart (`tunefarm.compiler.graph.select_early`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import helper

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.types.extents import LOGITS_TO_KEEP, FixedInput, Shapes, fixed_inputs

_KEPT = "%logits_to_keep"
_ATTRIBUTES_UNTIL = 9
"""Opsets in which the places of a Slice are attributes."""


def keeps_logits(model: onnx.ModelProto, shapes: Shapes) -> bool:
    """Whether the caller asks for the last logits of a model that has no input for that."""
    names = (info.name for info in model.graph.input)
    return LOGITS_TO_KEEP in fixed_inputs(shapes) and LOGITS_TO_KEEP not in names


def kept_logits(
    outputs: Iterable[onnx.ValueInfoProto], given: FixedInput, opset: int
) -> tuple[str, onnx.NodeProto, Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]]:
    """The output of logits, the node that selects the last of them, and its constants, by name.

    Raises ImportModelError where there is no such output, and for a number that is none.
    """
    names = [info.name for info in outputs]
    logits = [name for name in names if "logits" in name] or names
    if len(logits) != 1:
        raise ImportModelError(
            f"the model has no input {LOGITS_TO_KEEP!r}, and no output that is named logits "
            f"(its outputs: {', '.join(map(repr, names))})"
        )
    array = given.array
    if array.size != 1 or array.dtype.kind not in "iu" or array.item() < 1:
        raise ImportModelError(f"{LOGITS_TO_KEEP} is a number of positions, 1 or more, not {given}")
    places = {"starts": [-int(array.item())], "ends": [np.iinfo(np.int64).max], "axes": [-2]}
    if opset <= _ATTRIBUTES_UNTIL:
        node = helper.make_node("Slice", [logits[0]], [_KEPT], _KEPT)
        node.attribute.extend(helper.make_attribute(*place) for place in places.items())
        return logits[0], node, {}
    constants = {f"{_KEPT}.{name}": np.array(value) for name, value in places.items()}
    node = helper.make_node("Slice", [logits[0], *constants], [_KEPT], _KEPT)
    return logits[0], node, constants
