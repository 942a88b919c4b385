"""Steps that write the whole kernel in another form, before all other steps."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.attention import block_attention
from tunefarm.compiler.kernels.flatten_axes import flatten_axes
from tunefarm.compiler.kernels.im2col import im2col
from tunefarm.compiler.kernels.limb_dot import DIGITS, apply_limb_dot
from tunefarm.compiler.kernels.merge_axes import merge_axes, merge_reduce_axes
from tunefarm.compiler.kernels.short_functions import apply_short_functions
from tunefarm.compiler.kernels.split_axis import split_axis
from tunefarm.compiler.kernels.unpack_weights import apply_unpack_weights
from tunefarm.compiler.kernels.wide_factors import apply_wide_factors
from tunefarm.compiler.kernels.winograd import apply_winograd
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.steps.step import Step


@dataclass(frozen=True, slots=True)
class MergeAxes(Step):
    """Make one axis `first_second` of two adjacent output axes that are only walked together.

    for i < 4: for j < 5: y[i, j] = x[i, j] + 1     ->     for i_j < 20: y[i_j] = x[i_j] + 1

    Comes before all other steps.
    """

    first: str
    second: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("axes are merged before all other steps")
        return scheduled.rewritten(merge_axes(scheduled.kernel, self.first, self.second))


@dataclass(frozen=True, slots=True)
class FlattenAxes(Step):
    """Walk two adjacent axes of the result as one, `first_second`, whatever is read along them.

    for i < 4: for j < 3: y[i, j] = x[j, i]     ->     for i_j < 12: y[i_j] = x[i_j % 3, i_j // 3]

    Comes before all other steps but those that merge axes.
    """

    first: str
    second: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("axes are flattened before all other steps")
        return scheduled.rewritten(flatten_axes(scheduled.kernel, self.first, self.second))


@dataclass(frozen=True, slots=True)
class MergeReduceAxes(Step):
    """Make one axis `first_second` of two adjacent reduce axes of `stage`, as `MergeAxes` does.

    for k < 4: for l < 5: s += x[k, l]     ->     for k_l < 20: s += x[k_l]

    Comes before all other steps but `MergeAxes`.
    """

    stage: str
    first: str
    second: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("axes are merged before all other steps")
        kernel = merge_reduce_axes(scheduled.kernel, self.stage, self.first, self.second)
        return scheduled.rewritten(kernel)


@dataclass(frozen=True, slots=True)
class SplitAxis(Step):
    """Make two axes `axis_q`, `axis_r` of an axis of the result: quotient and rest by `factor`.

    for w < 8: y[w] = x[w // 2]     ->     for w_q < 4: for w_r < 2: y[w_q, w_r] = x[w_q]

    Comes before all other steps; `factor` divides the extent. Where the rest says which terms are
    summed, as the phase of a stride, each of its values has loops of its own terms.
    """

    axis: str
    factor: int

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("axes are split before all other steps")
        return scheduled.rewritten(split_axis(scheduled.kernel, self.axis, self.factor))


@dataclass(frozen=True, slots=True)
class WideFactors(Step):
    """Multiply numbers of 16 bits instead of bytes, converted once for all their uses.

    for i: for k: y[i] += i32(x[i + k]) * i32(w[k])
    ->
    for i: wide[i] = i16(x[i])
    for i: for k: y[i] += i32(wide[i + k]) * i32(i16(w[k]))

    Comes before all other steps but those that merge axes.
    """

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("factors are made wide before all other steps")
        return scheduled.rewritten(apply_wide_factors(scheduled.kernel))


@dataclass(frozen=True, slots=True)
class ShortFunctions(Step):
    """Compute functions by shorter code: e^x of what is never positive, tanh as a quotient.

    for i: y[i] = exp(x[i] - max)     ->     for i: y[i] = exp_nonpositive(x[i] - max)

    Comes before all other steps. Weights below the normal numbers are 0, and a tanh is up to 5.4
    units in the last place off instead of 2.4.
    """

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("functions are made short before all other steps")
        return scheduled.rewritten(apply_short_functions(scheduled.kernel))


@dataclass(frozen=True, slots=True)
class UnpackWeights(Step):
    """Unpack weights of a few bits to floats once for all rows of the data.

    for m, n: for k: y[m, n] += x[m, k] * (unpacked w[k, n]) * scale[n]
    ->
    for word, place, n: weights[word, place, n] = (unpacked w[word, n]) * scale[n]
    for m, n: for word, place: y[m, n] += x[m, word * 4 + place] * weights[word, place, n]

    With several `terms` they are rounded to the type of the data, which is narrow, and packed for
    matrix tiles of so many `lanes`, which sum so many terms in a step:

    for group, step, p: weights[group, step, p] = x's type((unpacked w[k, n]) * scale[n])
        with n = group * lanes + p // terms, k = step * terms + p % terms
    for m, n: for k: y[m, n] += x[m, k] * weights[n // lanes, k // terms, ...]

    Comes before all other steps but those that merge axes. Rounding differs from the direct form
    where there are several terms.
    """

    lanes: int = 0
    terms: int = 1

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("weights are unpacked before all other steps")
        kernel = apply_unpack_weights(scheduled.kernel, self.lanes, self.terms)
        return scheduled.rewritten(kernel)


@dataclass(frozen=True, slots=True)
class DigitSums(Step):
    """Sum a product with packed weights up in integers, of data in three digits, or in one.

    y[n] += x[k] * (unpacked w[k, n]) * scale[n]
    ->
    exponents, units, digits: x in whole units of its chunk, and their digits
    parts[digit, n] += digits[digit, k] * field k of w[n]
    y[n] += unit * scale[n] * (parts[2, n] * 65536 + parts[1, n] * 256 + parts[0, n])

    Comes before all other steps. Rounding differs from the direct form: with one digit, data is
    rounded to 8 bits.
    """

    digits: int = DIGITS

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("the algorithm is chosen before all other steps")
        return scheduled.rewritten(apply_limb_dot(scheduled.kernel, self.digits))


@dataclass(frozen=True, slots=True)
class BlockAttention(Step):
    """Let attention walk over blocks of `keys` keys, which are packed in groups of `lanes`.

    scores[m, n] += q[m, k] * key[n, k]; max[m]; exp[m, n]; sum[m]; weighted[m, d]
    ->
    keys[no, k, nl] = key[no * lanes + nl, k]
    scores[nb, m, n] += q[m, k] * keys[...]; masked[nb, m, n]
    max[m]; exp[nb, m, n]; sum[m]; weighted[m, d]                                  direct
    block.max[nb, m]; exp[nb, m, n]; block.sum[nb, m]; block.weighted[nb, m, d];
    max[m]; factor[nb, m]; sum[m]; weighted[m, d]                                  online

    With several `terms` narrow operands are packed for matrix tiles, which sum so many in a step:

    keys[no, step, nl * terms + t] = key[no * lanes + nl, step * terms + t]
    values[nb, step, d * terms + t] = value[nb * keys + step * terms + t, d]

    Comes before all other steps. Rounding differs from the direct form where blocks are `online`,
    and with several terms, where weights are rounded to the type of the values.
    """

    keys: int
    lanes: int
    online: bool = False
    terms: int = 1

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("the algorithm is chosen before all other steps")
        made = self.keys, self.lanes, self.online, self.terms
        kernel = block_attention(scheduled.kernel, *made)
        return scheduled.rewritten(kernel)


@dataclass(frozen=True, slots=True)
class Winograd(Step):
    """Compute a 3x3 convolution by Winograd's minimal filtering in tiles of `m` x `m` outputs.

    conv[oh, ow] += pad[oh + kh, ow + kw] * w[kh, kw]
    ->
    data.rows, data.both: B^T d B of each tile of pad
    products[x, y, t] += data.both[x, y, t] * transformed w[x, y]
    output.rows, conv: A^T products A

    With `in_rows` t is two axes, th and tw, so that a block of tiles may be a part of their rows;
    so it always is where rows end at run time. Comes before all other steps. The filter is
    transformed when the model is built. Rounding differs from the direct form.
    """

    m: int
    in_rows: bool = False

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("the algorithm is chosen before all other steps")
        rewritten = apply_winograd(scheduled.kernel, self.m, in_rows=self.in_rows)
        return scheduled.rewritten(rewritten, winograd=self.m)

    def check(self, scheduled: ScheduledKernel) -> None:
        for name, m in scheduled.reshaped.items():
            if m == self.m and name not in scheduled.layouts:
                raise ScheduleError(f"the filter needs PackLayout({name!r}, ..., winograd={m})")


@dataclass(frozen=True, slots=True)
class Im2col(Step):
    """Walk a plane as one axis `first_second`, with what its windows read gathered in a stage.

    for c: for h < 4: for w < 5: for k: for i: y[c, h, w] += x[k, h + i, w] * f[c, k, i]
    ->
    for i: for h_w < 20: for k: g[i, h_w, k] = x[k, h_w // 5 + i, h_w % 5]
    for c: for h_w < 20: for k: for i: y[c, h_w] += g[i, h_w, k] * f[c, k, i]

    Comes before all other steps.
    """

    first: str
    second: str

    def apply(self, scheduled: ScheduledKernel) -> ScheduledKernel:
        scheduled.require_untouched("windows are gathered before all other steps")
        return scheduled.rewritten(im2col(scheduled.kernel, self.first, self.second))
