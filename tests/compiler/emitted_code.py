"""What the compiler makes of known kernels, as digests: what records and builds rely on."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.compiler.schedule.small_kernels import f32, graph_of, kernel_of
from tests.targets import target_named
from tunefarm.compiler import VERSION
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelCall
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.llvm.emit_kernel import emit_kernel
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.tensor_type import Attribute

Json = dict[str, Any]

TARGETS = {"x86-64-v2": (1,), "x86-64-v3": (1,), "x86-64-v4": (1, 2), "armv8-neon": (2,)}
"""Targets, and the numbers of threads that code is made for: how loops are shared is no matter of
the target."""
THREADS = (1, 2)
DRAWN_SCHEDULES = 200
_DRAWN_FOR = "x86-64-v3"

_NAME = re.compile(r"%[A-Za-z_][\w.]*|^[A-Za-z_]\w*(?=:)", re.MULTILINE)
"""A value or label of LLVM IR, where it is defined or used."""


def model_code(name: str) -> Json:
    """What is emitted for a model of the zoo, with default schedules.

    `kernels` are the names by workload key, `schedules` the distinct ones by digest, and `code`
    has for each target and thread count each kernel's schedule and the digest of its LLVM IR.
    """
    graph = import_model_proto(build_model(name))
    kernels: dict[str, str] = {}
    schedules: Json = {}
    code: dict[str, dict[str, list[str]]] = {}
    for target_name, thread_counts in TARGETS.items():
        target = target_named(target_name)
        called = dict(_kernels(graph, target))
        kernels |= {key: kernel.name for key, kernel in called.items()}
        digests: dict[tuple[str, str], str] = {}  # many schedules are those of other threads, too
        for threads in thread_counts:
            emitted = code[f"{target_name}, {threads} threads"] = {}
            for key, kernel in called.items():
                schedule = default_schedule(kernel, target, threads)
                steps = schedule.to_json()
                which = _digest(json.dumps(steps))
                schedules[which] = steps
                if (key, which) not in digests:
                    digests[key, which] = _ir_digest(kernel, schedule, target)
                emitted[key] = [which, digests[key, which]]
    return {"version": VERSION, "kernels": kernels, "schedules": schedules, "code": code}


def drawn_loops() -> Json:
    """The digest of the loop nest of drawn schedules of small kernels, by kernel and number."""
    target = target_named(_DRAWN_FOR)
    digests: Json = {}
    for number in range(DRAWN_SCHEDULES):
        rng = random.Random(number)
        family = sorted(_FAMILIES)[number % len(_FAMILIES)]
        kernel = _FAMILIES[family](rng)
        space = schedule_space(kernel, target, rng.choice(THREADS))
        nest = lower(kernel, space.schedule(space.sample(rng)))
        digests[f"{number} {family} {workload_key(kernel)}"] = _digest(format_loops(nest))
    return {"version": VERSION, "loops": digests}


_NEW = ": new"


def differences(before: Json, now: Json) -> list[str]:
    """Where two of these differ, in words; at most a few."""
    return list(_differences("", before, now))[:20]


def only_adds(before: Json, now: Json) -> bool:
    """Whether all that was emitted before is emitted now, so that no record is lost or untrue."""
    return all(text.endswith(_NEW) for text in _differences("", before, now))


def _differences(where: str, before: Any, now: Any) -> Iterator[str]:
    if not (isinstance(before, dict) and isinstance(now, dict)):
        if before != now:
            yield f"{where}: {before} -> {now}"
        return
    for name in before.keys() | now.keys():
        if name not in now or name not in before:
            yield f"{where}/{name}{': gone' if name in before else _NEW}"
        else:
            yield from _differences(f"{where}/{name}", before[name], now[name])


def _kernels(graph: Graph, target: Target) -> Iterator[tuple[str, FusedKernel]]:
    for call in kernels_of(graph, target, chains=()).calls:
        if isinstance(call, KernelCall):
            yield call.key, call.kernel


def _ir_digest(kernel: FusedKernel, schedule: Schedule, target: Target) -> str:
    """Of the IR with its values numbered in the order of their first use."""
    text, _ = emit_kernel(lower(kernel, schedule), target, "kernel")
    names: dict[str, str] = {}
    text = _NAME.sub(lambda found: names.setdefault(found[0].lstrip("%"), f"%{len(names)}"), text)
    return _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _extent(rng: random.Random) -> int:
    return rng.choice((1, 2, 3, 7, 8, 13, 16, 31, 32, 48))


def _conv(rng: random.Random, group: int, channels: int, **attributes: Attribute) -> FusedKernel:
    window, size = rng.choice((1, 3)), rng.choice((7, 9, 14))
    padding = window // 2
    x, w = f32(1, channels, size, size), f32(channels, channels // group, window, window)
    given: Mapping[str, Attribute] = {"pads": (padding,) * 4, "groups": group, **attributes}
    graph = graph_of([x, w], [("conv", ["x0", "x1"], given), ("relu", ["v0"], {})], ["x1"])
    kernels = [kernel for _, kernel in _kernels(graph, target_named(_DRAWN_FOR))]
    return max(kernels, key=lambda kernel: len(kernel.stage(kernel.anchor).reduce_axes))


def _matmul(rng: random.Random) -> FusedKernel:
    m, n, k = (_extent(rng) for _ in range(3))
    return kernel_of([f32(m, k), f32(k, n)], [("matmul", ["x0", "x1"], {})], ["x1"])


def _softmax(rng: random.Random) -> FusedKernel:
    shape = tuple(_extent(rng) for _ in range(3))
    return kernel_of([f32(*shape)], [("softmax", ["x0"], {"axis": rng.randrange(3)})])


def _reduction(rng: random.Random) -> FusedKernel:
    shape = tuple(_extent(rng) for _ in range(3))
    attributes: dict[str, Attribute] = {"axes": (rng.randrange(3),), "keepdims": True}
    return kernel_of([f32(*shape)], [("reduce_sum", ["x0"], attributes), ("relu", ["v0"], {})])


def _pointwise(rng: random.Random) -> FusedKernel:
    shape = tuple(_extent(rng) for _ in range(3))
    return kernel_of(
        [f32(*shape), f32(shape[-1])], [("add", ["x0", "x1"], {}), ("sigmoid", ["v0"], {})]
    )


def _transpose(rng: random.Random) -> FusedKernel:
    shape = tuple(_extent(rng) + 1 for _ in range(3))
    return kernel_of([f32(*shape)], [("transpose", ["x0"], {"perm": (2, 0, 1)})])


_FAMILIES = {
    "conv": lambda rng: _conv(rng, 1, rng.choice((8, 12, 16))),
    "depthwise": lambda rng: _conv(rng, 16, 16),
    "strided": lambda rng: _conv(rng, 1, 16, strides=(2, 2)),
    "matmul": _matmul,
    "softmax": _softmax,
    "reduction": _reduction,
    "pointwise": _pointwise,
    "transpose": _transpose,
}


def read_golden(path: Path) -> Json:
    """What was recorded."""
    recorded: Json = json.loads(path.read_text())
    return recorded


def write_golden(path: Path, code: Json) -> None:
    """Record, a line for each kernel and each schedule, so that a difference can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_in_lines(code) + "\n")


def _in_lines(value: Any) -> str:
    """JSON with a line for each entry of an object."""
    if not isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    entries = (f"{json.dumps(name)}: {_in_lines(value[name])}" for name in sorted(value))
    return "{\n" + ",\n".join(entries) + "\n}"
