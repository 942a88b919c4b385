"""The operator map: every operator that models use, against the faster of two other engines.

    python -m tests.benchmarks.operators [--family F] [--case TEXT] [--threads T] [--target T]

Each case (tests/benchmarks/operator_cases) is a model of one operator with its surroundings, built
untuned. Its output is compared with onnxruntime's. Then ours, onnxruntime and OpenVINO take turns
in short slices on the same pinned cores, each with its inputs and outputs bound beforehand. The
figure is the median ratio of neighbouring slices, the faster engine's time over ours, with its 95 %
interval: below 1 we are slower. On one thread the time is that of the processor: what others did
meanwhile does not count. Beside it is the share of the roofline: the time that the work takes at
the measured FMA peak or the measured copy bandwidth for that many bytes, whichever is longer, over
ours. Prints the worst first, then a summary.

`--target` changes our code. Where it lacks AVX-512 and this CPU has it, peers are held to AVX2:
onnxruntime, which cannot be, only says what is right, unless it is the only one; what OpenVINO
runs in wider vectors all the same (matrix products, some reductions) is marked with a star and no
part of the summary.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import onnx

from tests.benchmarks.engines import (
    Arrays,
    Bound,
    CrashProbe,
    aligned,
    hold_to_avx2,
    onnxruntime_engine,
    openvino_engine,
    ours,
    runs_avx512,
)
from tests.benchmarks.fma_peak import copy_bandwidth, fma_peak
from tests.benchmarks.operator_cases.all_cases import all_cases
from tests.benchmarks.operator_cases.case import OperatorCase
from tests.benchmarks.operator_cases.count_flops import count_flops
from tests.benchmarks.paired import compare_paired
from tunefarm import compiler
from tunefarm.compiler.errors import TunefarmError, with_count
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.target import Target, host_target
from tunefarm.configs.settings import load_target
from tunefarm.measure.compare import Comparison
from tunefarm.measure.machine import fingerprint
from tunefarm.tuner.confirm.latency import (
    LONGEST_SPIN,
    LatencyOptions,
    interleaved_latencies,
    outputs_agree,
    pinned,
)

SLOW = 0.9
"""Cases below this count as slower than the best peer."""
LONG_CALL = 0.01  # seconds: a slice of such calls is one call without another before it
TOO_LONG = 0.3  # seconds: such a case is not called again
COPY_SIZES = tuple(1 << power for power in range(14, 27, 2))
OK = "ok"
PROBE = CrashProbe()


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a case: `ratio` is best peer / ours, None unless `status` is "ok".

    `wider` says that the peer ran wider vectors than our target has.
    """

    family: str
    case: str
    status: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    peer: str = ""
    seconds: float | None = None
    rate: str = ""
    roofline: float | None = None
    build_seconds: float = 0.0
    wider: bool = False


@dataclass(frozen=True, slots=True)
class Roofline:
    """FLOPs a second, and by the size of the data bytes a second, of all threads."""

    flops: float
    bandwidth: tuple[tuple[int, float], ...]

    @staticmethod
    def measured(target: Target, threads: int) -> Roofline:
        """One core's rates, each the best of several, times the threads."""
        peak, flops = fma_peak(target)
        copies = []
        for size in COPY_SIZES:
            copy, moved = copy_bandwidth(size // 2)
            copies.append((size, threads * moved / _quickest(copy)))
        return Roofline(threads * flops / _quickest(peak), tuple(copies))

    def seconds(self, flops: float, moved: float) -> tuple[float, bool]:
        """The least time for so much work on so many bytes; whether arithmetic bounds it."""
        fitting = [rate for size, rate in self.bandwidth if size >= moved]
        rate = fitting[0] if fitting else self.bandwidth[-1][1]
        return max(flops / self.flops, moved / rate), flops / self.flops > moved / rate


def _quickest(run: Callable[[], None]) -> float:
    """Seconds of a call, of the processor's time: the best of several slices."""
    best = math.inf
    for _ in range(5):
        calls, begin = 0, time.process_time()
        while (passed := time.process_time() - begin) < 0.004:
            run()
            calls += 1
        best = min(best, passed / calls)
    return best


def measure(case: OperatorCase, target: Target, threads: int, limits: Roofline) -> Row:
    """Build, check against onnxruntime, time in turns."""
    model, drawn = case.build()
    inputs = aligned(drawn)
    begin = time.perf_counter()
    try:
        built = compiler.build(import_model_proto(model), target=target, threads=threads)
    except TunefarmError as error:
        return Row(case.family, case.name, f"refused: {error}")
    spent = time.perf_counter() - begin
    mine = ours(built, inputs)
    begin = time.perf_counter()
    mine.run()
    first = time.perf_counter() - begin
    probe = PROBE if _is_narrower(target) else None
    peers, remark = _peers(model, inputs, mine.outputs, threads, probe)
    if not peers or remark:
        return Row(case.family, case.name, remark or "no peer runs it")
    wider = False
    if _is_narrower(target):
        held = [peer for peer in peers if not runs_avx512(peer)]
        wider, peers = not held, held or peers
    engine, compared, seconds = _timed(mine, peers, first, threads)
    flops = count_flops(model)
    moved = sum(array.nbytes for array in (*inputs.values(), *mine.outputs.values()))
    if flops:  # else tables that are only looked up, of which a part is read
        moved += sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    least, arithmetic = limits.seconds(flops, moved)
    return Row(
        case.family,
        case.name,
        OK,
        compared.ratio,
        compared.low,
        compared.high,
        engine,
        seconds,
        f"{flops / seconds / 1e9:.1f} GFLOP/s"
        if arithmetic
        else f"{moved / seconds / 1e9:.1f} GB/s",
        least / seconds,
        spent,
        wider,
    )


def _is_narrower(target: Target) -> bool:
    return host_target().has_avx512 and not target.has_avx512


def _timed(
    mine: Bound, peers: Sequence[Bound], first: float, threads: int
) -> tuple[str, Comparison, float]:
    """The best peer, how its time compares with ours, and the seconds of one of our calls.

    `first` are those of the first one; if they are too many there is no other.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    options = LatencyOptions(
        rounds=12 if first < LONG_CALL else 5,
        min_sample_seconds=0.002,
        max_seconds=0.25,
        idle=LONGEST_SPIN if threads > 1 else 0.0,
        settle=first < LONG_CALL,
    )
    runs = [peer.run for peer in peers] + ([mine.run] if first < TOO_LONG else [])
    samples = interleaved_latencies(runs, options, clock)
    times = samples[-1] if first < TOO_LONG else [first] * len(samples[0])
    compared = [
        (compare_paired(other, times, resamples=1000), peer.engine)
        for other, peer in zip(samples, peers, strict=False)
    ]
    best, engine = min(compared, key=lambda pair: pair[0].ratio)
    return engine, best, median(times)


def _peers(
    model: onnx.ModelProto,
    inputs: Arrays,
    outputs: Arrays,
    threads: int,
    probe: CrashProbe | None,
) -> tuple[list[Bound], str]:
    """The engines that run the model, and what is wrong with our outputs, if anything is.

    An engine that differs from onnxruntime on one thread, or crashes where it is tried, is left
    out: on two, onnxruntime's threads race for what ScatterND adds to one place.
    """
    peers: list[Bound] = []
    try:
        reference = onnxruntime_engine(model, inputs, None, 1)
        reference.run()
        if threads > 1:
            shared = onnxruntime_engine(model, inputs, None, threads)
            shared.run()
    except Exception as error:  # noqa: BLE001 what engines raise has no common class
        print(f"    onnxruntime: {str(error)[:200]}", file=sys.stderr)
    else:
        if not _agree(outputs, reference.outputs):
            return [], "wrong: the output differs from onnxruntime's"
        if threads == 1:
            peers.append(reference)
        elif _agree(shared.outputs, reference.outputs):
            peers.append(shared)
        else:
            print("    onnxruntime: differs from itself; it was left out", file=sys.stderr)
    if probe is not None and not probe.survives(model, inputs, outputs, threads):
        print("    openvino: it crashes; it was left out", file=sys.stderr)
        return peers, ""
    try:
        other = openvino_engine(model, inputs, outputs, threads)
        other.run()
    except Exception as error:  # noqa: BLE001
        print(f"    openvino: {str(error)[:200]}", file=sys.stderr)
    else:
        if _agree(other.outputs, outputs):
            peers.append(other)
        else:
            print("    openvino: the output differs; it was left out", file=sys.stderr)
    return peers, ""


def _agree(actual: Arrays, expected: Arrays) -> bool:
    pairs = zip(actual.values(), expected.values(), strict=True)
    return all(a.shape == b.shape and outputs_agree(a, b) for a, b in pairs)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of the last line; shares and ratios of the cases that were timed."""
    ratios = {row.case: row.ratio for row in rows if row.ratio is not None and not row.wider}
    if not ratios:
        return {"cases": len(rows), "timed": 0}
    worst = min(ratios, key=lambda case: ratios[case])
    return {
        "cases": len(rows),
        "timed": len(ratios),
        "refused_or_wrong": sum(row.status != OK for row in rows),
        "peer_wider": sum(row.wider for row in rows),
        "geometric_mean": geometric_mean(ratios.values()),
        f"share_below_{SLOW}": sum(ratio < SLOW for ratio in ratios.values()) / len(ratios),
        "worst": ratios[worst],
        "worst_case": worst,
    }


def _print(rows: Sequence[Row], facts: dict[str, Any]) -> None:
    for row in sorted(rows, key=lambda row: -1.0 if row.ratio is None else row.ratio):
        print(_line(row))
    print()
    families: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.ratio is not None and not row.wider:
            families[row.family].append(row.ratio)
    for family, ratios in sorted(families.items(), key=lambda item: geometric_mean(item[1])):
        below = sum(ratio < SLOW for ratio in ratios)
        print(
            f"{family:18} {len(ratios):3} cases   mean {geometric_mean(ratios):5.2f}   "
            f"worst {min(ratios):5.2f}   {below} below {SLOW}"
        )
    print(
        f"\n{facts['cpu']}, {with_count(int(facts['threads']), 'thread')}, {facts['target']}: "
        + _summary_text(summary(rows))
    )


def _summary_text(figures: dict[str, Any]) -> str:
    if not figures["timed"]:
        return f"none of {figures['cases']} cases was timed"
    wider = (
        f"; {figures['peer_wider']} peers ran wider vectors (*)" if figures["peer_wider"] else ""
    )
    return (
        f"{figures['timed']} of {figures['cases']} cases timed; best peer / ours: geometric mean "
        f"{figures['geometric_mean']:.2f}, {figures[f'share_below_{SLOW}']:.1%} below {SLOW}, "
        f"worst {figures['worst']:.2f} ({figures['worst_case']}){wider}"
    )


def _line(row: Row) -> str:
    if row.ratio is None:
        return f"{row.status[:70]:>16}  {row.case}"
    assert row.seconds is not None and row.roofline is not None
    peer = row.peer + "*" * row.wider
    return (
        f"{row.ratio:6.2f} [{row.low:5.2f}, {row.high:5.2f}] {1e6 * row.seconds:9.1f} us "
        f"{row.rate:>16} {row.roofline:4.0%} of roofline  {peer:12}  {row.case}"
    )


def _selected(families: str, text: str) -> Iterable[OperatorCase]:
    wanted = [family.strip() for family in families.split(",") if family.strip()]
    for case in all_cases():
        if text.lower() in case.name.lower() and (
            not wanted or any(family in case.family for family in wanted)
        ):
            yield case


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--family", default="", help="parts of names of families, with commas")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target", help="a named target or its file; default: this CPU")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--list", action="store_true", help="name the cases and do nothing else")
    options = parser.parse_args(arguments)
    cases = list(_selected(options.family, options.case))
    if not cases:
        parser.error(f"no case matches; families: {sorted({c.family for c in all_cases()})}")
    if options.list:
        print("\n".join(f"{case.family:18} {case.name}" for case in cases))
        return 0
    target = host_target()
    if options.target:
        target = Target.from_json(load_target(options.target).model_dump())
    if _is_narrower(target):
        hold_to_avx2()
    rows = []
    with pinned(options.threads):
        limits = Roofline.measured(target, options.threads)
        for case in cases:
            rows.append(measure(case, target, options.threads, limits))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    facts = {
        "cpu": fingerprint()["cpu"],
        "threads": options.threads,
        "target": options.target or "host",
        "peak_gflops": limits.flops / 1e9,
    }
    _print(rows, facts)
    if options.json:
        figures = {**facts, **summary(rows), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return int(any(row.status != OK for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
