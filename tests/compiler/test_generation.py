"""Generation: greedy tokens are onnxruntime's, sampling follows the distribution, caches stay."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.decoders import FORMS, Sizes, decoder, halved
from tests.compiler.frontend.onnx_models import model, node, tensor
from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import InputError, SettingsError
from tunefarm.compiler.generation import Generator, Sampling, generate
from tunefarm.compiler.runtime.execution.executable import Executable, GrowingRun
from tunefarm.compiler.runtime.spec.guards import SizeGuard

PROMPTS = ([7], [1, 5, 9], [4, 8, 15, 16, 23, 42, 4, 8, 15, 16, 23, 42, 60])
MORE = 20
USES_CACHE = {"use_cache_branch": np.array([True])}


def built(form: str, tokens: str = "1..8", *, fixed: bool = True) -> Executable:
    ranges: dict[str, tuple[int | str, ...]] = {
        "batch_size": ("1..2",),
        "sequence_length": (tokens,),
        "past_sequence_length": ("0..63",),
    }
    if form != "merged":
        ranges["total_sequence_length"] = ("1..71",)
    inputs = USES_CACHE if form == "merged" and fixed else None
    return compiler.build(_saved(form), shapes=ranges, inputs=inputs)


@cache
def _folder() -> Any:
    import tempfile

    return tempfile.TemporaryDirectory()


def _saved(form: str) -> str:
    path = f"{_folder().name}/{form}.onnx"
    onnx.save(decoder(form), path)
    return path


@cache
def shared(form: str, tokens: str = "1..8") -> Executable:
    return built(form, tokens)


def expected_tokens(proto: onnx.ModelProto, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Greedy tokens by onnxruntime."""
    session = exact_session(proto)
    names = [item.name for item in session.get_inputs()]
    outputs = [item.name for item in session.get_outputs()]
    ids, sizes = np.array(prompts), Sizes()
    caches = {
        name: np.zeros((len(ids), sizes.groups, 0, sizes.width), np.float32)
        for name in names
        if "past" in name
    }
    past, found = 0, []
    for _ in range(MORE):
        count = ids.shape[1]
        feed = {
            "input_ids": ids,
            "attention_mask": np.ones((len(ids), past + count), np.int64),
            "position_ids": np.tile(past + np.arange(count), (len(ids), 1)),
            **USES_CACHE,
        }
        results = session.run(
            outputs, {**{n: array for n, array in feed.items() if n in names}, **caches}
        )
        past += count
        caches = dict(zip(caches, results[1:], strict=True))
        ids = results[0][:, -1:].argmax(-1)
        found.append(ids[:, 0])
    return [[int(token) for token in row] for row in np.array(found).T]


@pytest.mark.parametrize("form", FORMS)
def test_greedy_tokens_are_those_of_onnxruntime(form: str) -> None:
    generator = Generator(shared(form))
    assert len(generator.executable.in_place) == 4
    for prompt in PROMPTS:
        found = generate(generator, prompt, max_tokens=MORE)
        assert found == expected_tokens(decoder(form), [prompt])


@pytest.mark.parametrize("form", ["concat", "gqa"])
def test_caches_in_half_precision_grow_in_place(form: str) -> None:
    path = f"{_folder().name}/half_{form}.onnx"
    onnx.save(halved(decoder(form)), path)
    ranges: dict[str, tuple[int | str, ...]] = {"sequence_length": ("1|2..40",)}
    ranges |= {"past_sequence_length": ("0..63",)}
    ranges |= {"batch_size": (1,), "total_sequence_length": ("1..100",)}
    generator = Generator(compiler.build(path, shapes=ranges))
    assert len(generator.executable.in_place) == 4
    ids = [*PROMPTS[-1], *generate(generator, PROMPTS[-1], max_tokens=MORE)[0]]
    again = Generator(generator.executable)  # with all tokens in one run
    assert generate(again, ids[:-1], max_tokens=1) == [ids[-1:]]
    for name, array in again.caches.items():
        assert array.dtype == np.float16
        held, expected = (item[:, :, : len(ids) - 1] for item in (generator.caches[name], array))
        np.testing.assert_allclose(held, expected, rtol=1e-2, atol=1e-2)


def test_the_width_of_a_head_is_known_where_the_file_leaves_it_open() -> None:
    """As the builder of onnxruntime-genai writes its caches."""
    proto = decoder("gqa")
    for info in (*proto.graph.input, *proto.graph.output):
        if info.name.startswith(("past", "present")):
            info.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    path = f"{_folder().name}/open_width.onnx"
    onnx.save(proto, path)
    ranges: dict[str, tuple[int | str, ...]] = {"sequence_length": (1,)}
    ranges |= {"past_sequence_length": ("0..63",)}
    ranges |= {"batch_size": (1,), "total_sequence_length": ("1..71",)}
    generator = Generator(compiler.build(path, shapes=ranges))
    found = generate(generator, PROMPTS[1], max_tokens=MORE)
    assert found == expected_tokens(decoder("gqa"), [PROMPTS[1]])


@pytest.mark.parametrize(("form", "keep"), [("gqa", 1), ("concat", 3)])
def test_logits_of_the_last_positions_are_those_of_all(form: str, keep: int) -> None:
    ranges: dict[str, tuple[int | str, ...]] = {"sequence_length": ("1|2..8",)}
    ranges |= {"past_sequence_length": ("0..63",), "batch_size": (1,)}
    ranges |= {"total_sequence_length": ("1..71",)}
    found = compiler.build(_saved(form), shapes=ranges, inputs={"logits_to_keep": keep})
    assert generate(Generator(found), PROMPTS[-1], max_tokens=MORE) == expected_tokens(
        decoder(form), [PROMPTS[-1]]
    )
    generator, whole = Generator(found), Generator(shared(form, "1|2..8"))
    for each in (generator, whole):
        each._begin(1)
    for count in (1, 2, 7):
        ids = np.arange(3, 3 + count)[None]
        last = [_logits(each, ids) for each in (generator, whole)]
        assert last[0].shape[1] == min(keep, count)
        np.testing.assert_allclose(last[0], last[1][:, -keep:], rtol=1e-4, atol=1e-5)


def _logits(generator: Generator, ids: Any) -> Any:
    """All logits that a run gives."""
    kept: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        run = GrowingRun.run

        def keep(self: GrowingRun, inputs: Any) -> Any:
            results = run(self, inputs)
            kept.append(np.array(results[generator.ports.logits]))
            return results

        patch.setattr(GrowingRun, "run", keep)
        generator._run(ids)
    return kept[0]


@pytest.mark.parametrize("tokens", ["1", "1|2..8"])
def test_a_prompt_goes_by_parts_that_the_model_takes(tokens: str) -> None:
    found = generate(shared("gqa", tokens), PROMPTS[-1], max_tokens=MORE)
    assert found == expected_tokens(decoder("gqa"), [PROMPTS[-1]])


def test_programs_for_prompts_and_steps_go_on_with_each_others_caches() -> None:
    one, several = (
        replace(
            shared("gqa", f"{low}..{high}").spec,
            guards=(SizeGuard("sequence_length", "input_ids", 1, low, high),),
        )
        for low, high in ((1, 1), (2, 8))
    )
    generator = Generator(Executable(one, None, [several]))
    for prompt in (PROMPTS[-1], PROMPTS[1]):
        found = generate(generator, prompt, max_tokens=MORE)
        assert found == expected_tokens(decoder("gqa"), [prompt])


def test_a_run_that_is_refused_leaves_the_caches_as_they_are() -> None:
    generator = Generator(shared("gqa"))
    stream = generator.stream([PROMPTS[1]], MORE)
    found = [next(stream)[0] for _ in range(3)]
    for rows, masks in ((1, 0), (1, 99), (2, 6)):
        token, mask = np.ones((rows, 1), np.int64), np.ones((rows, masks), np.int64)
        given = {"attention_mask": mask} if masks else {}
        with pytest.raises(InputError):
            generator._steps.run({"input_ids": token, "position_ids": token, **given})
    found += [tokens[0] for tokens in stream]
    assert [found] == expected_tokens(decoder("gqa"), [PROMPTS[1]])


def test_a_merged_decoder_runs_its_branch_with_a_cache() -> None:
    executable = built("merged", fixed=False)
    assert not executable.in_place  # branches choose the memory
    found = generate(executable, PROMPTS[1], max_tokens=MORE)
    assert found == expected_tokens(decoder("merged"), [PROMPTS[1]])


@pytest.mark.parametrize("form", ["gqa", "rotary"])
def test_a_cache_of_fixed_length_is_written_at_its_places(form: str) -> None:
    ranges: dict[str, tuple[int | str, ...]] = {
        "batch_size": (1,),
        "sequence_length": ("1..8",),
        "total_sequence_length": ("1..64",),
    }
    proto = decoder(form, past=64)
    path = f"{_folder().name}/fixed_{form}.onnx"
    onnx.save(proto, path)
    generator = Generator(compiler.build(path, shapes=ranges))
    assert generator.capacity == 64
    assert len(generator.executable.in_place) == 4
    found = generate(generator, PROMPTS[1], max_tokens=MORE)
    assert found == expected_tokens(decoder(form), [PROMPTS[1]])


def test_a_batch_gives_what_its_prompts_give_alone() -> None:
    prompts = [[1, 2, 3], [9, 8, 7]]
    for form in ("concat", "gqa"):
        alone = [generate(shared(form), prompt, max_tokens=MORE)[0] for prompt in prompts]
        assert generate(shared(form), prompts, max_tokens=MORE) == alone


def test_a_later_prompt_runs_from_where_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, counts = Generator(shared("gqa")), list[int]()
    run = GrowingRun.run

    def counted(self: GrowingRun, inputs: Any) -> Any:
        counts.append(inputs["input_ids"].shape[1])
        return run(self, inputs)

    monkeypatch.setattr(GrowingRun, "run", counted)
    prompt = PROMPTS[-1]
    first = generate(generator, prompt, max_tokens=4)
    assert counts == [8, 5, 1, 1, 1]
    counts.clear()
    longer = [*prompt, *first[0], 11, 12]
    assert generate(generator, longer, max_tokens=2) == generate(
        shared("gqa"), longer, max_tokens=2
    )
    assert counts[:2] == [3, 1]  # the last of the first four was not run
    counts.clear()
    changed = [*prompt[:6], 90, 91]
    again = generate(generator, changed, max_tokens=2)
    assert counts == [2, 1]
    generator.clear()
    assert generate(generator, changed, max_tokens=2) == again
    assert counts == [2, 1, 8, 1]


def test_tokens_come_one_by_one_and_end_with_a_stop_token() -> None:
    tokens = generate(shared("concat"), PROMPTS[1], max_tokens=MORE)[0]
    last = tokens[4]
    stream = Generator(shared("concat")).stream([PROMPTS[1]], MORE, stop=[last])
    assert next(stream) == (tokens[0],)
    assert [*stream][-1] == (last,)
    assert (
        generate(shared("concat"), PROMPTS[1], max_tokens=MORE, stop=[last])[0]
        == (tokens[: tokens.index(last) + 1])
    )


def test_a_row_that_has_ended_gives_none() -> None:
    prompts = [[1, 2, 3], [9, 8, 7]]
    first, second = generate(shared("gqa"), prompts, max_tokens=6)
    stop = next(token for token in first if token not in second)
    steps = [*Generator(shared("gqa")).stream(prompts, 6, stop=[stop])]
    end = first.index(stop)
    assert [step[0] for step in steps] == [*first[: end + 1], *[None] * (5 - end)]
    assert [step[1] for step in steps] == second


def test_steps_use_no_memory_but_the_cache() -> None:
    generator = Generator(shared("gqa"))
    stream = generator.stream([PROMPTS[1]], 60)
    tracemalloc.start()
    try:
        for _ in range(10):
            next(stream)
        places = _places(generator)
        next(stream)  # caches have been arrays for a step
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(44):
            next(stream)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert _places(generator) == places
    assert grown < 44 * 24, "more than a number that Python keeps for each step"


def _places(generator: Generator) -> list[int]:
    caches = generator.caches.values()
    return [cache.__array_interface__["data"][0] for cache in caches]


SAMPLINGS = (
    Sampling(1.0, seed=3),
    Sampling(0.5, seed=4),
    Sampling(1.3, top_k=7, seed=5),
    Sampling(1.0, top_p=0.8, seed=6),
    Sampling(0.9, top_k=12, top_p=0.9, seed=7),
)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    logits = np.random.default_rng(1).normal(size=24).astype(np.float32)
    random = np.random.default_rng(sampling.seed)
    draws = 5_000
    found = np.bincount([sampling.draw(logits, random) for _ in range(draws)], minlength=24)
    wanted = _plain_distribution(logits, sampling)
    allowed = wanted > 0
    assert not found[~allowed].any()
    likely, freedom = draws * wanted[allowed], allowed.sum() - 1
    squares = ((found[allowed] - likely) ** 2 / likely).sum()
    assert squares < freedom + 5 * np.sqrt(2 * freedom)  # its mean, and 5 standard deviations


def _plain_distribution(logits: np.ndarray[Any, Any], sampling: Sampling) -> np.ndarray[Any, Any]:
    """Word by word, the likeliest first."""
    shares = np.exp(logits.astype(np.float64) / sampling.temperature)
    order = sorted(range(len(shares)), key=lambda word: -shares[word])
    order = order[: sampling.top_k or None]
    total = sum(shares[word] for word in order)
    kept, reached = [], 0.0
    for word in order:
        if reached >= sampling.top_p:
            break
        kept.append(word)
        reached += shares[word] / total
    result = np.zeros(len(shares))
    result[kept] = shares[kept]
    result /= result.sum()
    return result


def test_a_seed_repeats_and_rows_draw_by_themselves() -> None:
    def sampled(prompts: Any, seed: int) -> list[list[int]]:
        return generate(shared("gqa"), prompts, max_tokens=MORE, temperature=1.0, seed=seed)

    both = sampled([[1, 2, 3], [1, 2, 3]], 5)
    assert both == sampled([[1, 2, 3], [1, 2, 3]], 5)
    assert both[0] != both[1]
    assert sampled([1, 2, 3], 5) == both[:1]
    assert sampled([1, 2, 3], 6) != both[:1]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0, and must be 0 .greedy. or more"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0, and must be above 0 and at most 1"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_samplings_that_cannot_be_are_refused(named: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Sampling(**named)


@pytest.mark.parametrize(
    ("prompts", "more", "message"),
    [
        ([[1, 2], [3]], 4, r"the prompts have \[1, 2\] tokens, and must have equally many"),
        ([[]], 4, "a prompt has no tokens"),
        ([[1], []], 4, "a prompt has no tokens"),
        ([], 4, "a prompt has no tokens"),
        ([[1], [2], [3]], 4, "3 prompts are given, and the model was built for a batch of 1 to 2"),
        ([[97]], 4, "token ids must be integers from 0 to 96"),
        ([[-1]], 4, "token ids must be integers from 0 to 96"),
        ([[1, 2]], 64, "2 tokens and 64 more do not fit into the caches, which hold 64"),
        ([[1]], 0, "max_tokens is 0"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(prompts: Any, more: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        next(Generator(shared("gqa")).stream(prompts, more))


def test_the_caches_are_filled_to_the_last_token() -> None:
    generator = Generator(shared("gqa"))
    generate(generator, PROMPTS[1], max_tokens=62)
    assert generator.cached == generator.capacity == 64


def test_a_model_without_a_cache_is_refused() -> None:
    node = onnx.helper.make_node("Gather", ["table", "input_ids"], ["logits"])
    table = np.zeros((9, 9), np.float32)
    proto = model([node], [tensor("input_ids", (1, 4), 7)], ["logits"], {"table": table})
    path = f"{_folder().name}/plain.onnx"
    onnx.save(proto, path)
    with pytest.raises(InputError, match="cannot generate: it has no cache"):
        Generator(compiler.build(path))


def test_an_input_that_no_decoder_has_is_refused() -> None:
    proto = decoder("gqa")
    proto.graph.input.append(tensor("pixels", (1, 3, 8)))
    proto.graph.output.append(tensor("seen", (1, 3, 8)))
    proto.graph.node.append(node("Relu", "pixels", "seen"))
    path = f"{_folder().name}/pixels.onnx"
    onnx.save(proto, path)
    ranges: dict[str, tuple[int | str, ...]] = {
        "batch_size": (1,),
        "sequence_length": (1,),
        "past_sequence_length": ("0..15",),
        "total_sequence_length": ("1..16",),
    }
    executable = compiler.build(path, shapes=ranges)
    with pytest.raises(InputError, match=r"more or less than token ids \(input_ids, pixels\)"):
        Generator(executable)


def test_a_model_that_takes_no_single_token_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"takes sequence_length:2\.\.8 tokens in a call, and not 1"
    ):
        Generator(built("gqa", "2..8"))
