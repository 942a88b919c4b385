"""Precision of single contractions: what each is computed in, as data that records keep.

A plan names contractions, and a calibration values, by identities that follow from what they
compute (`tunefarm.compiler.plan.precision.contractions`): it fits every file of the same model,
whatever its values are called.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.types.frozen import frozen


class Precision(StrEnum):
    """What the operands of a contraction are stored in; sums are f32, those of int8 are i32."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    INT8 = "int8"


@frozen
class Calibration:
    """The range of each value that int8 contractions read, from runs of the model.

    `method` says how ranges follow from what the values were ("minmax", "percentile 99.99", "mse"),
    `samples` how many runs there were, `data` is the SHA-256 of their inputs. `ranges` are by
    identity of the value: the minimum and maximum that are not clipped.
    """

    method: str
    samples: int
    data: str
    ranges: Mapping[str, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        """The calibration as JSON values."""
        ranges = {name: list(self.ranges[name]) for name in sorted(self.ranges)}
        return {
            "method": self.method,
            "samples": self.samples,
            "data": self.data,
            "ranges": ranges,
        }

    @staticmethod
    def from_json(value: Any) -> Calibration:
        """The inverse of `to_json`. Raises SettingsError for other JSON."""
        try:
            ranges = {
                str(name): (float(lo), float(hi)) for name, (lo, hi) in value["ranges"].items()
            }
            calibration = Calibration(
                str(value["method"]), int(value["samples"]), str(value["data"]), ranges
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SettingsError(
                f"this is no calibration: {type(error).__name__}: {error}"
            ) from error
        for name, (low, high) in calibration.ranges.items():
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise SettingsError(f"calibration: the range {low} to {high} of {name} is none")
        return calibration


@frozen
class PrecisionPlan:
    """The precision of every contraction of a model by identity; those not named are f32."""

    precisions: Mapping[str, Precision] = field(default_factory=dict)
    calibration: Calibration | None = None

    def of(self, identity: str) -> Precision:
        """The precision of a contraction."""
        return self.precisions.get(identity, Precision.F32)

    @property
    def digest(self) -> str:
        """The SHA-256 of what the plan says: equal for plans that lower a model alike."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        lowered = {
            name: precision.value
            for name, precision in sorted(self.precisions.items())
            if precision is not Precision.F32
        }
        ranges = None
        if Precision.INT8 in lowered.values() and self.calibration is not None:
            ranges = self.calibration.to_json()
        return {"precisions": lowered, "calibration": ranges}

    @staticmethod
    def from_json(value: Any) -> PrecisionPlan:
        """The inverse of `to_json`. Raises SettingsError for other JSON."""
        try:
            named = value["precisions"].items()
            precisions = {str(name): Precision(precision) for name, precision in named}
            ranges = value["calibration"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SettingsError(
                f"this is no plan of precisions: {type(error).__name__}: {error}"
            ) from error
        calibration = None if ranges is None else Calibration.from_json(ranges)
        return PrecisionPlan(precisions, calibration)
