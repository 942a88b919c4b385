"""Operands of branches as operands of what is made for all of them."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.plan.fusion.merge_contractions import JointChannels
from tunefarm.compiler.types.tensor_type import Array


def numbers(*shape: int, first: int = 1) -> Array:
    return np.arange(first, first + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def test_channels_are_padded_to_blocks_but_for_the_last_branch() -> None:
    joint = JointChannels.of([(1, 3, 2, 2), (1, 8, 2, 2), (1, 5, 2, 2)], 4)
    assert joint.padded == (1, 0, 0)
    assert joint.shape == (1, 17, 2, 2)
    biases = joint.joined([numbers(3), numbers(8), numbers(5)])
    np.testing.assert_array_equal(biases[:4], [1, 2, 3, 0])
    assert JointChannels.of([(1, 3, 2), (1, 8, 2)], 4).padded == (0, 0)


def test_constants_of_channels_are_filled_between_branches() -> None:
    joint = JointChannels.of([(1, 3, 2, 2), (1, 4, 2, 2)], 4)
    constant = joint.constant([numbers(3, 1, 1), numbers(1)], 9.0)
    assert constant is not None
    np.testing.assert_array_equal(constant.reshape(-1), [1, 2, 3, 9, 1, 1, 1, 1])
    assert joint.between([numbers(3, 1, 1), numbers(1)], 9.0) == 9.0


def test_constant_that_is_the_same_everywhere_stays() -> None:
    joint = JointChannels.of([(1, 3, 2, 2), (1, 4, 2, 2)], 4)
    plane = numbers(2, 2)
    assert joint.constant([plane, plane.copy()], 0.0) is plane
    assert joint.between([plane, plane.copy()], 0.0) is None  # no single number
    number = numbers()
    assert joint.constant([number, number.copy()], 0.0) is number
    assert joint.between([number, number.copy()], 0.0) == 1.0


def test_constants_that_differ_along_other_axes_cannot_be_joined() -> None:
    joint = JointChannels.of([(1, 3, 2), (1, 4, 2)], None)
    assert joint.constant([numbers(3, 1), numbers(4, 2)], 0.0) is None
    both = joint.constant([numbers(3, 2), numbers(4, 2)], 0.0)
    assert both is not None and both.shape == (1, 7, 2)
