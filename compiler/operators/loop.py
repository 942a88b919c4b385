"""The bounds of a loop in the graph; what lies in between is found by what depends on what.

    state = loop_state(initial)         a carried value at the beginning of a step
    step = loop_index(most)             the number of the step, an i64 scalar
    ...                                 whatever depends on these is computed in each step
    result = loop_result(limit, first, again, initial states..., next states..., collected...)

A loop has one `loop_result` node for each thing that it gives, all with the same operands: its last
states, what its steps have collected (as rows, of `most` steps), then how many steps ran (i64), and
whether it would go on (bool) if it were not for `most`, the most steps that it has memory for. The
operands `limit` (an i64 scalar), and whether to begin and to go on (bools), may be absent: then
nothing but the others, and `most`, ends it. All of its nodes have the attribute `loop` in common.
"""

from __future__ import annotations

from tunefarm.compiler.operators.registry import REQUIRED, OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType

STATE = "loop_state"
INDEX = "loop_index"
RESULT = "loop_result"
COUNT = TensorType(DType.I64, ())
CONDITION = TensorType(DType.BOOL, ())
MOST_OPERANDS = 4096
FIXED = 3
"""Operands of a result before the initial states: limit, first condition, next condition."""


@frozen
class LoopParts:
    """The operands of a `loop_result` by what they are; "" is absent."""

    limit: str
    first: str
    again: str
    initial: tuple[str, ...]
    states: tuple[str, ...]
    collected: tuple[str, ...]

    @staticmethod
    def of(node: Node) -> LoopParts:
        """Those of a node."""
        states = node.attributes["states"]
        assert isinstance(states, int)
        limit, first, again, *values = node.inputs
        return LoopParts(
            limit,
            first,
            again,
            tuple(values[:states]),
            tuple(values[states : 2 * states]),
            tuple(values[2 * states :]),
        )


def _state(attributes: Attributes, types: Types) -> TensorType:
    return types.present(0)


def _index(attributes: Attributes, types: Types) -> TensorType:
    check(types[0] == COUNT, "the most steps are an i64 scalar")
    return COUNT


def _result(attributes: Attributes, types: Types) -> TensorType:
    number, states = attributes.integer("number"), attributes.integer("states")
    check(len(types) > FIXED, "a loop has no values")
    most, operands = attributes.integer("most"), len(types) - FIXED
    check(most > 0, f"a loop has memory for {most} steps")
    check(0 <= 2 * states <= operands, f"there are {operands} values for {states} states")
    initial, later = types[FIXED : FIXED + states], types[FIXED + states : FIXED + 2 * states]
    check(initial == later, "a state is not what it was before the first step")
    results = operands - states
    check(types.optional(0) in (None, COUNT), "the limit is an i64 scalar")
    conditions = (types.optional(1), types.optional(2))
    check(set(conditions) <= {None, CONDITION}, "whether a loop goes on is a bool")
    check(0 <= number < results + 2, f"a loop has no result {number}")
    if number == results:
        return COUNT
    if number == results + 1:
        return CONDITION
    own = types.present(FIXED + states + number)
    return own if number < states else TensorType(own.dtype, (most, *own.shape))


register(
    OperatorDefinition(
        STATE,
        Pattern.LOOP,
        1,
        _state,
        None,
        {"loop": REQUIRED, "number": REQUIRED},
    ),
    OperatorDefinition(INDEX, Pattern.LOOP, 1, _index, None, {"loop": REQUIRED}),
    OperatorDefinition(
        RESULT,
        Pattern.LOOP,
        (0, MOST_OPERANDS),
        _result,
        None,
        # `backward` has the numbers of collected values of which the last step gives the first row.
        {
            "loop": REQUIRED,
            "states": REQUIRED,
            "most": REQUIRED,
            "number": REQUIRED,
            "backward": (),
        },
    ),
)
