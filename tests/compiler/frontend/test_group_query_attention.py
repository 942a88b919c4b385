"""GroupQueryAttention: prompts, tokens and parts of texts, with caches that grow or do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.compiler.frontend.contributed_models import Values, by_onnxruntime, by_us, model_of
from tunefarm.compiler import build
from tunefarm.compiler.errors import ImportModelError, UnsupportedOperatorError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.plan.optimise import optimise

HEADS, GROUPS, WIDTH = 6, 2, 16


@dataclass(frozen=True)
class Case:
    """New tokens after `past` ones, in a cache with room for `room` (0: there is none)."""

    batch: int
    tokens: int
    past: int
    room: int

    @property
    def total(self) -> int:
        return self.past + self.tokens

    def feeds(self, seed: int = 0, packed: bool = False, tables: bool = False) -> dict[str, Any]:
        rng = np.random.default_rng(seed)

        def floats(*shape: int) -> Values:
            return rng.standard_normal(shape).astype(np.float32)

        rows = (self.batch, self.tokens)
        cache = (self.batch, GROUPS, self.room, WIDTH)
        return {
            "q": floats(*rows, (HEADS + 2 * GROUPS * packed) * WIDTH),
            "k": None if packed else floats(*rows, GROUPS * WIDTH),
            "v": None if packed else floats(*rows, GROUPS * WIDTH),
            "pk": floats(*cache) if self.room else None,
            "pv": floats(*cache) if self.room else None,
            "last": np.full(self.batch, self.total - 1, np.int32),
            "total": np.array(self.total, np.int32),
            "cos": floats(64, WIDTH // 2) if tables else None,
            "sin": floats(64, WIDTH // 2) if tables else None,
        }


CASES = {
    "prompt": Case(2, 5, 0, 0),
    "prompt into room": Case(2, 5, 0, 12),
    "token": Case(2, 1, 7, 12),
    "last token": Case(2, 1, 11, 12),
    "part of a text": Case(1, 3, 5, 12),
}


def assert_same(
    case: Case, feeds: dict[str, Any], constants: tuple[str, ...] = (), **attributes: Any
) -> None:
    """Results and caches agree; behind the tokens of a row ours are 0."""
    given_: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS, **attributes}
    model = model_of("GroupQueryAttention", feeds, ("y", "k2", "v2"), constants, **given_)
    found, expected = by_us(model, feeds), by_onnxruntime(model, feeds)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-4, atol=3e-5)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert ours.shape == theirs.shape
        used = [slice(0, int(last) + 1) for last in feeds["last"]]
        for row, part in enumerate(used):
            np.testing.assert_allclose(ours[row, :, part], theirs[row, :, part], rtol=1e-5)
            assert not ours[row, :, part.stop :].any()


@settings(
    max_examples=10, deadline=None, derandomize=True, phases=[Phase.generate]
)  # each example is a build: shrinking one takes minutes
@given(st.data())
def test_gives_what_onnxruntime_gives(data: st.DataObject) -> None:
    case = CASES[data.draw(st.sampled_from(list(CASES)))]
    rotary = data.draw(st.integers(0, 1))
    feeds = case.feeds(data.draw(st.integers(0, 99)), data.draw(st.booleans()), bool(rotary))
    attributes: dict[str, Any] = {"do_rotary": rotary}
    if rotary:
        attributes["rotary_interleaved"] = data.draw(st.integers(0, 1))
    match data.draw(st.sampled_from(["", "window", "softcap", "sink", "scale", "bias"])):
        case "window":
            attributes["local_window_size"] = data.draw(st.integers(1, 6))
        case "softcap":
            attributes["softcap"] = 5.0
        case "sink":
            attributes["smooth_softmax"] = 1
        case "scale":
            attributes["scale"] = 0.11
        case "bias":
            rng = np.random.default_rng(1)
            bias = rng.standard_normal((case.batch, 1, case.tokens, case.total))
            feeds |= {"at": None, "bias": bias.astype(np.float32)}
    constants = data.draw(st.sampled_from([(), ("total",), ("total", "last")]))
    assert_same(case, feeds, constants, **attributes)


@pytest.mark.parametrize("case", [Case(2, 1, 7, 7), Case(1, 3, 5, 5)])
@pytest.mark.parametrize("constants", [("total",), ("total", "last")])
def test_cache_without_room_grows(case: Case, constants: tuple[str, ...]) -> None:
    assert_same(case, case.feeds(tables=True), constants, do_rotary=1)


def test_rows_may_be_of_different_lengths() -> None:
    case = CASES["token"]
    feeds = case.feeds(tables=True) | {"last": np.array([7, 4], np.int32)}
    assert_same(case, feeds, do_rotary=1)


def test_token_may_be_turned_for_a_position_of_its_own() -> None:
    case = CASES["token"]
    feeds = case.feeds(tables=True) | {"at": np.array([[9], [3]], np.int64)}
    assert_same(case, feeds, do_rotary=1)


def test_parts_of_several_texts_go_behind_what_each_has() -> None:
    """onnxruntime takes one such text at a time: so do we, and compare."""
    both, one = Case(2, 3, 5, 12), Case(1, 3, 5, 12)
    feeds = both.feeds(tables=True) | {"last": np.array([7, 4], np.int32)}
    given_: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
    outputs = ("y", "k2", "v2")
    found = by_us(model_of("GroupQueryAttention", feeds, outputs, **given_), feeds)
    for row in range(2):
        names = ("q", "k", "v", "pk", "pv", "last")
        single = feeds | {name: feeds[name][row : row + 1] for name in names}
        single["total"] = single["last"][0] + np.int32(1)
        model = model_of("GroupQueryAttention", one.feeds(tables=True), outputs, **given_)
        expected = by_us(model, single)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours[row : row + 1], theirs, rtol=1e-4, atol=1e-5)


def test_decoding_step_by_step_gives_what_the_whole_prompt_gives() -> None:
    """One executable, whose caches go in where they came out."""
    rng = np.random.default_rng(0)
    steps, room = 6, 8
    shapes = {"q": HEADS * WIDTH, "k": GROUPS * WIDTH, "v": GROUPS * WIDTH}
    whole = {n: rng.standard_normal((1, steps, w)).astype(np.float32) for n, w in shapes.items()}
    case = Case(1, 1, 0, room)
    given_: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS}
    outputs = ("y", "pk2", "pv2")
    model = model_of("GroupQueryAttention", case.feeds(), outputs, **given_)
    executable = build(import_model_proto(model))
    caches = {name: np.full((1, GROUPS, room, WIDTH), 9, np.float32) for name in ("pk", "pv")}
    rows = []
    for step in range(steps):
        now = {name: np.ascontiguousarray(v[:, step : step + 1]) for name, v in whole.items()}
        sizes = {"last": np.array([step], np.int32), "total": np.array(step + 1, np.int32)}
        found = executable.run({**now, **caches, **sizes})
        caches = {name: found[f"{name}2"] for name in caches}
        rows.append(found["y"])
    prompt = {**Case(1, steps, 0, 0).feeds(), **whole}
    expected = by_us(model_of("GroupQueryAttention", prompt, outputs, **given_), prompt)[0]
    np.testing.assert_allclose(np.concatenate(rows, axis=1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["prompt", "token", "part of a text"])
def test_becomes_the_one_operator(name: str) -> None:
    model = model_of(
        "GroupQueryAttention", CASES[name].feeds(), num_heads=HEADS, kv_num_heads=GROUPS
    )
    operators = [node.operator for node in optimise(import_model_proto(model), 16).nodes]
    assert operators.count("attention") == 1
    assert "softmax" not in operators


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"k_quant_type": "PER_TENSOR"}, "a quantised cache of another type"),
        ({"qk_output": 1}, r"GroupQueryAttention.*the scores as an output \(qk_output = 1\)"),
    ],
)
def test_what_is_not_known_is_refused(attributes: dict[str, Any], reason: str) -> None:
    feeds = CASES["prompt"].feeds()
    given_: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS, **attributes}
    with pytest.raises(UnsupportedOperatorError, match=reason):
        import_model_proto(model_of("GroupQueryAttention", feeds, **given_))


@pytest.mark.parametrize("name", ["prompt", "token", "part of a text"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_queries_and_keys_may_be_normalised(name: str, dynamic: bool) -> None:
    """onnxruntime's CPU has no such norm: it gets queries and keys that are normalised."""
    given_: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1}
    feeds, rng = CASES[name].feeds(5, tables=True), np.random.default_rng(6)
    names = ("position", "bias", "sink", "ks", "vs")
    weights = {key: rng.standard_normal(WIDTH).astype(np.float32) for key in ("qn", "kn")}
    outputs, normal = ("y", "k2", "v2"), dict(feeds)
    for key, weight in (("q", "qn"), ("k", "kn")):
        heads = feeds[key].reshape(*feeds[key].shape[:2], -1, WIDTH)
        root = np.sqrt((heads**2).mean(axis=-1, keepdims=True) + np.float32(0.1))
        normal[key] = (heads / root * weights[weight]).reshape(feeds[key].shape)
    expected = by_onnxruntime(model_of("GroupQueryAttention", normal, outputs, **given_), normal)
    feeds |= {**dict.fromkeys(names), **weights}
    proto = model_of(
        "GroupQueryAttention", feeds, outputs, ("qn", "kn"), **given_, qk_norm_epsilon=0.1
    )
    bounds = None
    if dynamic:
        for port in proto.graph.input:
            if port.name in ("q", "k", "v"):
                port.type.tensor_type.shape.dim[1].dim_param = "tokens"
        bounds = {"tokens": ("1..8",)}
    given = {key: value for key, value in feeds.items() if value is not None}
    found = build(import_model_proto(proto, bounds)).run(
        {key: value for key, value in given.items() if key not in weights}
    )
    for output, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(found[output], wanted, rtol=2e-4, atol=3e-5)


def test_weight_of_a_norm_of_another_width_is_refused() -> None:
    feeds = CASES["prompt"].feeds()
    names = ("cos", "sin", "position", "bias", "sink", "ks", "vs")
    feeds |= {**dict.fromkeys(names), "qn": np.ones(WIDTH + 1, np.float32)}
    with pytest.raises(ImportModelError, match="no weight of heads of 16 features"):
        import_model_proto(
            model_of("GroupQueryAttention", feeds, num_heads=HEADS, kv_num_heads=GROUPS)
        )


QUANTISED: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS, "kv_cache_bit_width": 8}


def _quantised(case: Case, kind: str, tables: bool = False) -> dict[str, Any]:
    """Feeds with caches of 8 bits and their scales."""
    feeds, rng = case.feeds(3, tables=tables), np.random.default_rng(4)
    for name in ("pk", "pv") if case.room else ():
        feeds[name] = rng.integers(-128, 128, feeds[name].shape).astype(np.int8)
    shape = (1,) if kind == "PER_TENSOR" else (1, GROUPS, 1, WIDTH)
    scales = {name: rng.uniform(0.02, 0.04, shape).astype(np.float32) for name in ("ks", "vs")}
    return {**feeds, "position": None, "bias": None, "sink": None, **scales}


def _assert_same_integers(ours: Values, theirs: Values) -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == np.int8
    difference = np.abs(ours.astype(int) - theirs.astype(int))
    assert difference.max() <= 1  # a quotient in the middle of two integers
    assert (difference != 0).mean() < 0.01


@pytest.mark.parametrize("name", ["prompt into room", "token", "last token", "part of a text"])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("constants", [(), ("ks", "vs")])
def test_a_cache_of_8_bits(name: str, kind: str, rotary: int, constants: tuple[str, ...]) -> None:
    feeds = _quantised(CASES[name], kind, bool(rotary))
    attributes = {**QUANTISED, "k_quant_type": kind, "v_quant_type": kind, "do_rotary": rotary}
    model = model_of("GroupQueryAttention", feeds, ("y", "k2", "v2"), constants, **attributes)
    found, expected = by_us(model, feeds), by_onnxruntime(model, feeds)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-4, atol=1e-3)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        _assert_same_integers(ours, theirs)


@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
def test_a_cache_of_8_bits_of_a_dynamic_length(kind: str) -> None:
    case = Case(2, 1, 7, 12)
    attributes = {**QUANTISED, "k_quant_type": kind, "v_quant_type": kind, "do_rotary": 1}
    feeds = _quantised(case, kind, tables=True)
    constants = ("cos", "sin", "ks", "vs")
    model = model_of("GroupQueryAttention", feeds, ("y", "k2", "v2"), constants, **attributes)
    for info in model.graph.input:
        if info.name in ("pk", "pv"):
            info.type.tensor_type.shape.dim[2].dim_param = "room"
    executable = build(import_model_proto(model, {"room": ("8..16",)}))
    for room in (8, 12, 16):
        feeds = _quantised(Case(2, 1, 7, room), kind, tables=True)
        given_ = {name: feeds[name] for name in executable.inputs}
        found = executable.run(given_)
        expected = by_onnxruntime(model, feeds)
        np.testing.assert_allclose(found["y"], expected[0], rtol=2e-4, atol=1e-3)
        for ours, theirs in zip((found["k2"], found["v2"]), expected[1:], strict=True):
            _assert_same_integers(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_cache_bit_width": 4}, "of another type than int8"),
        ({"k_quant_type": "NONE"}, "k_quant_type does not define"),
        ({"v_quant_type": "PER_CHANNEL"}, "are no scales PER_CHANNEL of 2 heads of 16"),
        ({"v_quant_type": "PER_ROW"}, "v_quant_type"),
    ],
)
def test_other_quantised_caches_are_refused(changes: dict[str, Any], reason: str) -> None:
    feeds = _quantised(CASES["token"], "PER_TENSOR")
    kinds = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    attributes = {**QUANTISED, **kinds, **changes}
    model = model_of("GroupQueryAttention", feeds, ("y", "k2", "v2"), (), **attributes)
    with pytest.raises(ImportModelError, match=reason):
        import_model_proto(model)


def _windowed(parts: tuple[int, ...], room: int) -> list[dict[str, Any]]:
    """Feeds of steps of so many tokens each, without their caches; the first one has zeros."""
    feeds, total = [], 0
    for seed, tokens in enumerate(parts):
        total += tokens
        case = Case(1, tokens, total - tokens, room)
        feeds.append(case.feeds(seed, tables=True))
        feeds[-1] |= {"cos": Case(1, 1, 0, 1).feeds(tables=True)["cos"]}
        feeds[-1] |= {"sin": Case(1, 1, 0, 1).feeds(tables=True)["sin"]}
    return feeds


def _held(total: int, room: int, window: int) -> int:
    piece = room - window + 1
    return total if total <= room else total - piece * -(-(total - room) // piece)


@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize(("room", "window"), [(8, 5), (6, 6), (9, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_cache_of_a_sliding_window(room: int, window: int, rotary: int, dynamic: bool) -> None:
    """Step after step onnxruntime's caches go in: prompts longer than the cache, then tokens."""
    attributes: dict[str, Any] = {
        "num_heads": HEADS,
        "kv_num_heads": GROUPS,
        "do_rotary": rotary,
        "local_window_size": window,
        "sliding_window_cache": 1,
    }
    outputs, built = ("y", "k2", "v2"), dict[int, Any]()
    steps, total = _windowed((11, 1, 1, 3, 1, 1, 1), room), 0
    caches = {name: np.zeros((1, GROUPS, room, WIDTH), np.float32) for name in ("pk", "pv")}
    for feeds in steps:
        feeds |= caches
        tokens = feeds["q"].shape[1]
        total += tokens
        model = model_of("GroupQueryAttention", feeds, outputs, ("cos", "sin"), **attributes)
        expected = by_onnxruntime(model, feeds)
        if dynamic:
            for info in model.graph.input:
                if info.name in ("q", "k", "v"):
                    info.type.tensor_type.shape.dim[1].dim_param = "s"
        key = 0 if dynamic else tokens
        if key not in built:
            sizes = {"s": ("1..11",)} if dynamic else None
            built[key] = build(import_model_proto(model, sizes))
        executable = built[key]
        found = list(executable.run({name: feeds[name] for name in executable.inputs}).values())
        np.testing.assert_allclose(found[0], expected[0], rtol=2e-4, atol=3e-5)
        held = _held(total, room, window)
        for ours, theirs in zip(found[1:], expected[1:], strict=True):
            np.testing.assert_allclose(ours[:, :, :held], theirs[:, :, :held], rtol=1e-5)
        caches = dict(zip(("pk", "pv"), expected[1:], strict=True))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(1, 1, 3, 4), "at least as long as the window"),
        (Case(1, 5, 0, 0), "at least as long as the window"),
        (Case(2, 1, 3, 8), "a cache of a sliding window for a batch"),
    ],
)
def test_other_caches_of_a_sliding_window_are_refused(case: Case, reason: str) -> None:
    given_: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS, "local_window_size": 5}
    model = model_of("GroupQueryAttention", case.feeds(), **given_, sliding_window_cache=1)
    with pytest.raises(ImportModelError, match=reason):
        import_model_proto(model)


def test_cache_of_a_sliding_window_of_dynamic_length_is_refused_with_what_to_do() -> None:
    given_: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS, "local_window_size": 5}
    feeds = Case(1, 1, 3, 8).feeds()
    proto = model_of("GroupQueryAttention", feeds, **given_, sliding_window_cache=1)
    for port in proto.graph.input:
        if port.name in ("pk", "pv"):
            port.type.tensor_type.shape.dim[2].dim_param = "room"
    with pytest.raises(ImportModelError, match="sliding_window_cache = 1") as raised:
        import_model_proto(proto, {"room": ("5..9",)})
    assert "fix room" in raised.value.hint
