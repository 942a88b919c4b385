"""Records the data sets on which search strategies and cost models are compared.

    python -m tests.benchmarks.recording measure recording.db [--avx2] [--minutes 25]
    python -m tests.benchmarks.recording pack recording.db [--avx2] --output FILE
    python -m tests.benchmarks.recording condense tuning.db --output FILE.json.gz
    python -m tests.benchmarks.recording show --output FILE

`measure` times the schedules of a thinned space of each kernel as a tuning job does: each next to
the default schedule, slice by slice, so that the clock of a shared host says nothing about it. It
can be interrupted and goes on where it was. `--avx2` holds this CPU to AVX2. `pack` writes the
kernels that were measured to the end, `condense` what tuning jobs have measured, on any CPU: not
whole spaces, but kernels of networks. `show` prints what a file holds.

tests/data/recorded.npz, of a Zen 3, was made by an earlier version, which measured larger spaces
of eight kernels, each schedule alone, two or three times over.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.benchmarks.kernels import matmul_model, model_of
from tests.tuner.recorded import (
    FILE,
    STATUSES,
    RecordedKernel,
    about,
    load,
    save,
    save_past,
    thinned,
)
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.count_work import kernel_flops
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.kernels.serialize import kernel_from_json, kernel_to_json
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.space import Candidate, ChoiceValue, ScheduleSpace, Sketch
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.settings import Settings
from tunefarm.db import queries
from tunefarm.db.records import TargetRecord, TaskKey, TrialRecord, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import LogRatio, pair_of
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.tuner.model.history import PastKernel, past_kernel
from tunefarm.tuner.records.estimates import recorded_pair
from tunefarm.tuner.records.trials import is_censored, task_key, trial_record
from tunefarm.tuner.search.measuring import runner_of, timing_options
from tunefarm.tuner.search.tasks import plan

SCHEDULES = 180  # of a kernel's thinned space, at most
LEAST_OF_SKETCH = 12  # candidates, however many sketches a space has
CANDIDATES = (960, 640, 480, 320, 240, 180, 120)
"""Candidates that a space is thinned to, the first with few enough schedules: some are equal."""
AVX512 = ("avx512", "avxvnni", "amx")  # features that a CPU held to AVX2 goes without


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and a part of the name of the kernel that is recorded."""

    name: str
    model: onnx.ModelProto
    kernel: str = ""


def conv_model(
    inputs: int, outputs: int, size: int, window: int = 3, stride: int = 1, group: int = 1
) -> onnx.ModelProto:
    conv = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["c"],
        pads=[window // 2] * 4,
        strides=[stride, stride],
        group=group,
    )
    return model_of(
        [conv, helper.make_node("Relu", ["c"], ["y"])],
        [1, inputs, size, size],
        ("w", (outputs, inputs // group, window, window)),
        ("b", (outputs,)),
    )


def depthwise_model(channels: int, size: int, window: int = 3, stride: int = 1) -> onnx.ModelProto:
    """A depthwise convolution between two 1x1 convolutions, which keep its data in blocks."""
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["before"]),
        helper.make_node(
            "Conv",
            ["before", "w"],
            ["c"],
            pads=[window // 2] * 4,
            strides=[stride, stride],
            group=channels,
        ),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "b"], ["y"]),
    ]
    shape = (channels, channels, 1, 1)
    weights = (("a", shape), ("w", (channels, 1, window, window)), ("b", shape))
    return model_of(nodes, [1, channels, size, size], *weights)


def product_model(
    left: Sequence[int], right: Sequence[int], dtype: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """The product of two inputs: of activations, or with weights that are packed as it runs."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "z"], ["y"])],
        "product",
        [
            helper.make_tensor_value_info("x", dtype, left),
            helper.make_tensor_value_info("z", dtype, right),
        ],
        [helper.make_tensor_value_info("y", dtype, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def int8_product_model(m: int, k: int, n: int) -> onnx.ModelProto:
    """Bytes times constant weights, to floats, as of a dynamically quantized model."""
    weights = np.random.default_rng(0).integers(-127, 128, (k, n)).astype(np.int8)
    graph = helper.make_graph(
        [
            helper.make_node("MatMulInteger", ["x", "w", "zero"], ["i"]),
            helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["f", "scale"], ["y"]),
        ],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [m, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(weights, "w"),
            onnx.numpy_helper.from_array(np.array(128, np.uint8), "zero"),
            onnx.numpy_helper.from_array(np.array(0.01, np.float32), "scale"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def bf16_product_model(m: int, k: int, n: int) -> onnx.ModelProto:
    """A product of bf16 numbers with constant weights."""
    weights = (np.random.default_rng(0).standard_normal((k, n)) / np.sqrt(k)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["w"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["x", "narrow"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [m, k])],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, None)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def quantised_conv_model(
    inputs: int, outputs: int, size: int, window: int = 3, stride: int = 1
) -> onnx.ModelProto:
    """A convolution of bytes between two others, which keep its data in blocks."""
    rng, kinds = np.random.default_rng(0), {"u8": TensorProto.UINT8, "f32": TensorProto.FLOAT}
    nodes, constants, name = [], [], "x"
    for number, (reads, gives, taps, step) in enumerate(
        [(16, inputs, 1, 1), (inputs, outputs, window, stride), (outputs, 16, 1, 1)]
    ):
        weight = rng.integers(-127, 128, (gives, reads, taps, taps)).astype(np.int8)
        scale = np.float32(1 / (64 * taps * np.sqrt(reads)))
        given = {
            "xs": np.float32(0.02),
            "xz": np.uint8(128),
            "w": weight,
            "ws": np.full(gives, scale, np.float32),
            "wz": np.zeros(gives, np.int8),
            "ys": np.float32(0.02),
            "yz": np.uint8(128),
        }
        names = [f"{item}{number}" for item in given]
        constants += [
            onnx.numpy_helper.from_array(np.asarray(v), f"{k}{number}") for k, v in given.items()
        ]
        made = f"y{number}"
        nodes.append(
            helper.make_node(
                "QLinearConv", [name, *names], [made], pads=[taps // 2] * 4, strides=[step, step]
            )
        )
        name = made
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", kinds["u8"], [1, 16, size, size])],
        [helper.make_tensor_value_info(name, kinds["u8"], None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def bf16_conv_model(
    inputs: int, outputs: int, size: int, window: int = 3, stride: int = 1
) -> onnx.ModelProto:
    """A convolution of bf16 numbers between two others, which keep its data in blocks."""
    rng, nodes, constants, name = np.random.default_rng(0), [], [], "x"
    for number, (reads, gives, taps, step) in enumerate(
        [(16, inputs, 1, 1), (inputs, outputs, window, stride), (outputs, 16, 1, 1)]
    ):
        weight = rng.standard_normal((gives, reads, taps, taps)) / (taps * np.sqrt(reads))
        constants.append(onnx.numpy_helper.from_array(weight.astype(np.float32), f"w{number}"))
        nodes += [
            helper.make_node("Cast", [f"w{number}"], [f"n{number}"], to=TensorProto.BFLOAT16),
            helper.make_node(
                "Conv",
                [name, f"n{number}"],
                [f"y{number}"],
                pads=[taps // 2] * 4,
                strides=[step, step],
            ),
        ]
        name = f"y{number}"
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [1, 16, size, size])],
        [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def layer_norm_model(rows: int, width: int) -> onnx.ModelProto:
    node = helper.make_node("LayerNormalization", ["x", "g", "b"], ["y"], axis=-1)
    return model_of([node], [1, rows, width], ("g", (width,)), ("b", (width,)))


def one_node(op: str, shape: Sequence[int], **attributes: Any) -> onnx.ModelProto:
    return model_of([helper.make_node(op, ["x"], ["y"], **attributes)], shape)


def cases() -> list[Case]:
    """Kernels of the zoo's and of trained networks, by what they compute and at which sizes."""
    return [
        Case("conv3x3 64x56", conv_model(64, 64, 56)),
        Case("matmul 128x768x768", matmul_model(128, 768, 768)),
        Case("depthwise3x3 144x56", depthwise_model(144, 56), "conv_relu"),
        Case("conv1x1 256-64x56", conv_model(256, 64, 56, window=1)),
        Case("batched product 12x197x64x197", product_model([1, 12, 197, 64], [1, 12, 64, 197])),
        Case("softmax 1536x128", one_node("Softmax", [1536, 128], axis=-1)),
        Case("conv3x3 256x14", conv_model(256, 256, 14)),
        Case("layer norm 197x768", layer_norm_model(197, 768)),
        Case("max pool 3x3 64x112 stride 2", _pool_model()),
        Case("conv3x3 64-128x56 stride 2", conv_model(64, 128, 56, stride=2)),
        Case("matmul 128x768x3072", matmul_model(128, 768, 3072)),
        Case("depthwise5x5 240x28", depthwise_model(240, 28, window=5), "conv_relu"),
        Case(
            "transpose 64x56x56 to last", one_node("Transpose", [1, 64, 56, 56], perm=[0, 2, 3, 1])
        ),
        Case("reduce mean 256x28", one_node("ReduceMean", [1, 256, 28, 28])),
        Case("conv7x7 3-64x224 stride 2", conv_model(3, 64, 224, window=7, stride=2)),
        Case("int8 product 128x768x768", int8_product_model(128, 768, 768), "matmul"),
        Case("bf16 product 128x768x768", bf16_product_model(128, 768, 768), "matmul"),
        Case("batched product 12x128x128x64", product_model([1, 12, 128, 128], [1, 12, 128, 64])),
        Case("conv1x1 512-128x28", conv_model(512, 128, 28, window=1)),
        Case("conv3x3 512x7", conv_model(512, 512, 7)),
        Case("matmul 1x2048x1000", matmul_model(1, 2048, 1000)),
        Case("depthwise7x7 96x56", depthwise_model(96, 56, window=7), "conv_relu"),
        Case("conv1x1 256-512x56 stride 2", conv_model(256, 512, 56, window=1, stride=2)),
        Case("grouped conv3x3 128x56", conv_model(128, 128, 56, group=32)),
        Case("conv5x5 48-64x28", conv_model(48, 64, 28, window=5)),
        Case("depthwise3x3 96x112 stride 2", depthwise_model(96, 112, stride=2), "conv_relu"),
        Case("softmax 6144x197", one_node("Softmax", [6144, 197], axis=-1)),
        Case("matmul 64x512x2048", matmul_model(64, 512, 2048)),
        Case("bf16 conv3x3 256x14", bf16_conv_model(256, 256, 14), "conv"),
        Case("int8 conv3x3 256x14", quantised_conv_model(256, 256, 14), "conv"),
        Case("bf16 conv1x1 64-256x56", bf16_conv_model(64, 256, 56, window=1), "conv"),
        Case("int8 conv1x1 1024-256x14", quantised_conv_model(1024, 256, 14, window=1), "conv"),
        Case("bf16 conv3x3 512x7", bf16_conv_model(512, 512, 7), "conv"),
        Case(
            "int8 conv3x3 128-256x28 stride 2", quantised_conv_model(128, 256, 28, stride=2), "conv"
        ),
        Case("bf16 product 512x768x3072", bf16_product_model(512, 768, 3072), "matmul"),
        Case("int8 product 197x192x768", int8_product_model(197, 192, 768), "matmul"),
    ]


def _pool_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(
            "MaxPool", ["c"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Conv", ["p", "w"], ["y"]),
    ]
    return model_of(nodes, [1, 64, 112, 112], ("w", (64, 64, 1, 1)))


def held_to_avx2(target: Target) -> Target:
    """This CPU without its AVX-512."""
    features = tuple(name for name in target.features if not name.startswith(AVX512))
    return replace(target, cpu="x86-64-v3", features=features, vector_bytes=32, vector_registers=16)


def thinned_at_random(space: ScheduleSpace, seed: int, most: int) -> ScheduleSpace:
    """A product of parts of the domains, with the default's values, of some `most` candidates."""
    rng = random.Random(seed)
    share = max(LEAST_OF_SKETCH, most // len(space.sketches))
    return thinned(
        space,
        {
            (sketch.name, name): values
            for sketch in space.sketches
            for name, values in _thinned_domains(sketch, rng, share).items()
        },
    )


def _thinned_domains(
    sketch: Sketch, rng: random.Random, most: int
) -> dict[str, tuple[ChoiceValue, ...]]:
    """Each domain's default and, one by one, more values of choices drawn: now one next to those
    that are kept, now any."""
    kept = {
        choice.name: {choice.values.index(value)}
        for choice, value in zip(sketch.choices, sketch.default, strict=True)
    }
    sizes = {choice.name: len(choice.values) for choice in sketch.choices}
    while growing := [
        name
        for name, positions in kept.items()
        if len(positions) < sizes[name]
        and math.prod(map(len, kept.values())) // len(positions) * (len(positions) + 1) <= most
    ]:
        fewest = min(len(kept[name]) for name in growing)
        name = rng.choice([name for name in growing if len(kept[name]) == fewest])
        left = sorted(set(range(sizes[name])) - kept[name])
        near = [p for p in left if {p - 1, p + 1} & kept[name]]
        kept[name].add(rng.choice(near if rng.random() < 0.5 else left))
    return {
        choice.name: tuple(choice.values[p] for p in sorted(kept[choice.name]))
        for choice in sketch.choices
    }


class Recording:
    """Measures the schedules of one kernel into a database."""

    def __init__(self, case: Case, target: Target, store: Store, settings: Settings) -> None:
        self.case, self.target, self.store, self.settings = case, target, store, settings
        calls = kernels_of(import_model_proto(case.model), target).calls
        named = [c for c in calls if isinstance(c, KernelCall) and case.kernel in c.kernel.name]
        call = max(named, key=lambda c: (len(c.kernel.stages), kernel_flops(c.kernel)))
        self.kernel = call.kernel
        numerics = settings.compile.numerics
        space = schedule_space(self.kernel, target, 1, numerics)
        self.key: TaskKey = task_key(call.key, target, 1, numerics)
        for most in CANDIDATES:
            self.space = thinned_at_random(space, zlib.crc32(case.name.encode()), most)
            self._plan()
            if len(self.planned) <= SCHEDULES:
                break
        self.default = plan(self.space, self.space.default()).hash

    def _plan(self) -> None:
        self.planned: dict[str, Candidate] = {}  # the first candidate of each schedule
        self.hashes: list[str] = []
        self.schedules: dict[str, list[Any]] = {}
        for number in range(self.space.size):
            planned = plan(self.space, self.space.candidate(number))
            self.hashes.append(planned.hash)
            self.schedules[planned.hash] = planned.schedule
            self.planned.setdefault(planned.hash, planned.candidate)

    def measure(self, runner: Runner, until: float) -> None:
        """Measure what has no record yet, up to this moment of the monotonic clock."""
        self.store.add([TargetRecord(self.target.key, self.target.to_json())])
        kernel = kernel_to_json(self.kernel)
        self.store.add([WorkloadRecord(self.key.workload, self.kernel.name, kernel)])
        order = [hash for hash in self.planned if hash != self.default]
        random.Random(0).shuffle(order)
        done = self.records()
        todo = iter([hash for hash in (self.default, *order) if hash not in done])
        waiting: dict[str, str] = {}
        while True:
            while len(waiting) < runner.capacity and time.monotonic() < until:
                hash = next(todo, "")
                if not hash:
                    break
                request = self._request(hash, kernel)
                waiting[request.request_id] = hash
                runner.submit(request)
            if not waiting:
                break
            results = runner.results(1.0)
            self.store.add(self._record(waiting.pop(item.request_id), item) for item in results)

    def records(self) -> dict[str, TrialRecord]:
        """What was measured, by schedule."""
        return {record.schedule_hash: record for record in queries.trials(self.store, self.key)}

    def _request(self, hash: str, kernel: Any) -> MeasureRequest:
        options: dict[str, float | int] = dict(timing_options(self.settings))
        rivals: tuple[list[Any], ...] = ()
        if hash != self.default:
            options["give_up"] = 1
            rivals = (self.schedules[self.default],)
        return MeasureRequest(
            f"record-{self.target.key}-{self.key.workload}-{hash[:16]}",
            kernel,
            self.key.workload,
            self.schedules[hash],
            1,
            options,
            rivals=rivals,
            target=self.target.key,
        )

    def _record(self, hash: str, result: MeasureResult) -> TrialRecord:
        candidate = self.planned[hash]
        pair = pair_of(result)
        rival = median(result.rivals[0]) if result.rivals and result.rivals[0] else math.nan
        return trial_record(
            self.key,
            result,
            sketch=candidate.sketch,
            choices=self.space.choices(candidate),
            schedule=self.schedules[hash],
            job=None,
            reference=None if pair is None else self.default,
            latency=None if pair is None else pair.ratio * rival,
        )

    def packed(self) -> RecordedKernel | None:
        """The candidates' table, in the default's median seconds; None if some are missing."""
        records = self.records()
        if any(hash not in records for hash in self.planned):
            return None
        numbers = {hash: i for i, hash in enumerate(self.planned)}
        rows = [records[hash] for hash in self.hashes]
        scale = median(
            time
            for record in records.values()
            if record.reference_samples
            for time in record.reference_samples
        )
        pairs = [
            LogRatio(0.0, 0.0, 0) if hash == self.default else recorded_pair(row)
            for hash, row in zip(self.hashes, rows, strict=True)
        ]
        ratios = [math.inf if pair is None else pair.ratio for pair in pairs]
        return RecordedKernel(
            name=self.case.name,
            key=self.key.workload,
            kernel=self.kernel,
            target=self.target,
            space=self.space,
            schedules=np.array([numbers[hash] for hash in self.hashes], np.int32),
            statuses=np.array([STATUSES.index(row.status) for row in rows], np.uint8),
            latencies=scale * np.array(ratios, np.float64),
            censored=np.array([is_censored(row) for row in rows], np.bool_),
            anchors=np.full(len(rows), np.nan),
            deviations=np.array(
                [math.nan if pair is None else pair.deviation for pair in pairs], np.float64
            ),
            machine=dict(rows[0].machine),
        )


def recordings(
    chosen: Sequence[Case], target: Target, store: Store, settings: Settings
) -> Iterator[Recording]:
    """Those of the cases that the target has a space of."""
    for case in chosen:
        try:
            item = Recording(case, target, store, settings)
        except TunefarmError as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            continue
        distinct = len(item.planned)
        print(
            f"{case.name}: {item.kernel.name}, {item.space.size}, {distinct} distinct", flush=True
        )
        yield item


def measure(
    chosen: Sequence[Case], target: Target, store: Store, settings: Settings, minutes: float
) -> None:
    """Measure the kernels one after the other, for so long."""
    started = time.monotonic()
    until = started + 60.0 * minutes
    with runner_of(settings, target, print) as runner:
        for item in recordings(chosen, target, store, settings):
            item.measure(runner, until)
            seconds = time.monotonic() - started
            load = os.getloadavg()[0]
            print(f"  {len(item.records())} records, {seconds:.0f} s, load {load:.1f}", flush=True)


LEAST_TRIALS = 16  # of a kernel, to be condensed


def condensed(store: Store) -> list[PastKernel]:
    """What any jobs have measured of kernels on one thread, and today's spaces still have."""
    targets = queries.targets(store)
    keys = [key for key in queries.tasks(store, only_ok=True) if key.threads == 1]
    kernels = queries.workloads(store, [key.workload for key in keys])
    found = []
    for key in keys:
        target = Target.from_json(targets[key.target].description)
        kernel = kernel_from_json(kernels[key.workload].kernel)
        space = schedule_space(kernel, target, 1, key.numerics)
        found.append(past_kernel(kernel, space, target, queries.trials(store, key)))
    return [item for item in found if len(item.trials) >= LEAST_TRIALS]


def show(kernels: Sequence[RecordedKernel], header: Mapping[str, Any]) -> None:
    """Print what a file holds."""
    for item in kernels:
        ok = np.isfinite(item.latencies)
        near = (item.latencies <= 1.05 * item.best).mean()
        distinct = len(set(item.schedules.tolist()))
        default = item.latency(item.space.default())
        print(
            f"{item.name:32s} {item.space.size:5d} candidates, {distinct:5d} schedules, "
            f"{(~ok).sum():3d} failed, {item.censored.sum():5d} given up early, best "
            f"{1e6 * item.best:8.1f} us, median {np.median(item.latencies[ok]) / item.best:5.2f}x, "
            f"default {default / item.best:5.3f}x, within 5 %: {100 * near:5.2f} %"
        )
    print(f"{dict(kernels[0].machine)}, target {kernels[0].target.key}; {dict(header)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("measure", "pack", "condense", "show"))
    parser.add_argument("database", nargs="?", default="recording.db")
    parser.add_argument("--output", type=Path, default=FILE)
    parser.add_argument("--match", default="", help="only kernels whose name this pattern finds")
    parser.add_argument("--avx2", action="store_true", help="hold this CPU to AVX2")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--note", default="", help="of pack: how the machine was meanwhile")
    arguments = parser.parse_args()
    if arguments.what == "show":
        show(load(path=arguments.output), about(arguments.output))
        return
    settings = Settings()
    target = held_to_avx2(host_target()) if arguments.avx2 else host_target()
    chosen = [case for case in cases() if re.search(arguments.match, case.name)]
    with Store.open(arguments.database) as store:
        if arguments.what == "measure":
            measure(chosen, target, store, settings, arguments.minutes)
            return
        if arguments.what == "condense":
            save_past(arguments.output, condensed(store), {"note": arguments.note})
            return
        packed = [item.packed() for item in recordings(chosen, target, store, settings)]
        header = {
            "made": datetime.now(UTC).date().isoformat(),
            "numerics": settings.compile.numerics,
            "llvmlite": version("llvmlite"),
            "note": arguments.note,
        }
        arguments.output.parent.mkdir(exist_ok=True)
        save(arguments.output, [item for item in packed if item is not None], header)
        print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
