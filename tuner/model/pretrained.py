"""The pretrained model: what was learnt of other CPUs, shipped with the package.

It corrects the analytic estimate before anything is measured; a job's own trials teach the
difference that is left. `python -m tests.benchmarks.pretraining make` writes the file from recorded
trials. It is compressed by gzip: a line with the digests of the columns that the model was trained
on and of what follows, then an XGBoost booster in UBJSON. XGBoost, which may crash on what is none,
is given nothing else.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xgboost

from tunefarm.tuner.interrupt import signals_held
from tunefarm.tuner.model.features import (
    FEATURES,
    KERNEL_FEATURES,
    LOOP_FEATURES,
    NEST_FEATURES,
    FeatureMatrix,
    layout_digest,
)

FILE = Path(__file__).with_name("pretrained.ubj.gz")
_MARK = "tunefarm-pretrained-1"  # with which the first line begins
_EPOCH = 0  # of the file's date, so that equal models are equal bytes
COLUMNS = [FEATURES.index(name) for name in (*NEST_FEATURES, *LOOP_FEATURES, *KERNEL_FEATURES)]
"""What it reads. The nest's columns are relative to the CPU's caches, registers and lanes already;
by those of the target it would know the few kinds of CPU that were recorded, and it ranked the
schedules of another one worse."""


class PretrainedModel:
    """Corrects the analytic estimate; see `tunefarm.tuner.model.features.Correction`."""

    def __init__(self, booster: xgboost.Booster) -> None:
        self._booster = booster
        self._booster.set_param({"nthread": 1})

    def of(self, features: FeatureMatrix) -> npt.NDArray[np.float32]:
        """See `Correction.of`."""
        found = self._booster.inplace_predict(features[:, COLUMNS])
        return np.asarray(found, np.float32)

    def to_bytes(self) -> bytes:
        """The content of a file that `read_pretrained` reads."""
        booster = bytes(self._booster.save_raw("ubj"))
        line = f"{_MARK} {layout_digest()} {_digest(booster)}\n"
        return gzip.compress(line.encode() + booster, mtime=_EPOCH)


class Loaded(NamedTuple):
    """The pretrained model, or None and what is wrong with its file, in one line."""

    model: PretrainedModel | None
    problem: str = ""


@cache
def load_pretrained() -> Loaded:
    """The model of the package, read once."""
    return read_pretrained(FILE)


def read_pretrained(path: Path) -> Loaded:
    """The model of a file. One that is damaged, or of other columns, is left out."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        return _ignored(path, f"it cannot be read ({error})")
    line, _, model = content.partition(b"\n")
    mark, *digests = line.decode(errors="replace").split(" ")
    if mark != _MARK or len(digests) != 2 or digests[1] != _digest(model):
        return _ignored(path, "it is no pretrained model, or damaged")
    if digests[0] != layout_digest():
        return _ignored(path, f"it is of other features ({digests[0]}, here {layout_digest()})")
    booster = xgboost.Booster()
    try:
        with signals_held():  # XGBoost starts a thread
            booster.load_model(bytearray(model))
    except xgboost.core.XGBoostError:
        return _ignored(path, "this version of XGBoost cannot load it")
    return Loaded(PretrainedModel(booster))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _ignored(path: Path, reason: str) -> Loaded:
    return Loaded(None, f"the pretrained cost model {path} is ignored: {reason}")
