"""GraphChoice: what was chosen for a model's graph, what it gains, and how it was found, as JSON.

{"decisions": [{"decide": "layout", "value": "conv1", "block": 24}, ...],
 "described": "NHWC24 from conv1 to conv5",
 "speedup": 1.08, "low": 1.06, "high": 1.1, "seconds": 0.0031,
 "notes": ["1048576 bytes for values between kernels, 2097152 by the rules"]}

Records of earlier versions may have `regions`, what parts of the plan gained, and `found`, what was
looked at: they are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, PLAIN, GraphPlan, Layout
from tunefarm.configs.json_values import from_json, to_json
from tunefarm.measure.measurement import is_unchanged

_CHANNELS_LAST = "NHWC"
_NAMED = 3
"""Decisions of one kind that a description names."""


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """A plan of a model's graph: `speedup` is the model's time under the rules over its time under
    the plan, from whole models run in turn, which `low` and `high` bound with 95 % confidence, and
    `seconds` those of a run; None where nothing was confirmed. `arena_bytes` are those of the
    values between its kernels.

    `described` names the plan in a few words, `notes` say what else there is to say.
    """

    plan: GraphPlan = DEFAULT_PLAN
    described: str = ""
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    seconds: float | None = None
    arena_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The choice as JSON values."""
        values = to_json(replace(self, plan=DEFAULT_PLAN))
        return {
            "decisions": self.plan.to_json(),
            **{k: v for k, v in values.items() if k != "plan"},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GraphChoice:
        """The inverse of `to_json`. Raises PlanError for other JSON."""
        try:
            plan = GraphPlan.from_json(data["decisions"])
            found = from_json(GraphChoice, {n: v for n, v in data.items() if n != "plan"})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"no choice of a plan: {error!r:.80}") from error
        return replace(found, plan=plan)

    def __str__(self) -> str:
        name = self.described or described(self.plan)
        if self.plan == DEFAULT_PLAN:
            return name
        if self.speedup is None or self.low is None or self.high is None:
            return f"{name} (not confirmed)"
        if is_unchanged(self.low, self.high):
            return f"{name} (unchanged: the same build as the rules')"
        if self.low <= 1.0:  # there are other reasons to take it
            return (
                f"{name} ({self.speedup:.2f}x as fast as the rules, {self.low:.2f}-{self.high:.2f})"
            )
        return (
            f"{name} ({self.speedup:.2f}x faster than the rules, "
            f"{self.low:.2f}-{self.high:.2f}, confirmed)"
        )


def described(
    plan: GraphPlan, order: Sequence[str] = (), channels: Mapping[str, int] | None = None
) -> str:
    """The plan in a few words: its layouts from where to where, the rest by kind.

    `order` are the graph's values in order, `channels` those of its values: blocks of all are NHWC.
    """
    if not plan.decisions:
        return "as the rules decide"
    place = {name: number for number, name in enumerate(order)}
    layouts = sorted(plan.of(Layout), key=lambda item: place.get(item.value, len(place)))
    named = [(item, _layout_name(item, channels or {})) for item in layouts]
    runs = groupby(named, key=lambda pair: _CHANNELS_LAST if _is_last(pair[1]) else pair[1])
    parts = list(_shortened([_run(list(items)) for _, items in runs], "layouts"))
    rest = [item for item in plan.decisions if not isinstance(item, Layout)]
    rest.sort(key=lambda item: item.kind)
    for kind, items in groupby(rest, key=lambda item: item.kind):
        parts += _shortened([str(item) for item in items], f"{kind} decisions")
    return ", ".join(parts)


def _layout_name(item: Layout, channels: Mapping[str, int]) -> str:
    if item.block == PLAIN:
        return "NCHW"
    if channels.get(item.value) == item.block:
        return f"{_CHANNELS_LAST}{item.block}"
    return f"NCHW{item.block}c"


def _is_last(name: str) -> bool:
    return name.startswith(_CHANNELS_LAST)


def _run(items: Sequence[tuple[Layout, str]]) -> str:
    """Values of one layout, one behind the other; NHWC has as many channels as each of them."""
    first, last = items[0][0].value, items[-1][0].value
    name = items[0][1] if len({name for _, name in items}) == 1 else _CHANNELS_LAST
    return f"{name} at {first}" if len(items) == 1 else f"{name} from {first} to {last}"


def _shortened(parts: Sequence[str], what: str) -> Iterator[str]:
    yield from parts[:_NAMED]
    rest = len(parts) - _NAMED
    if rest > 0:
        yield f"{rest} more {what.removesuffix('s') if rest == 1 else what}"
