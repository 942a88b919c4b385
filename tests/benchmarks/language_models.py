"""A decoder with weights of 4 bits next to other engines: prompts, and tokens behind them.

    python -m tests.benchmarks.language_models [--lengths 64,512,2000] [--steps 16] [--rounds 5]
        [--threads T] [--layers 12] [--precisions default,int8-activations] [--cpu-time]

onnxruntime has the same file; so has onnxruntime-genai, where it is installed. OpenVINO has the
same weights without GroupQueryAttention, and its caches are states. Both run with activations of
8 bits, in blocks of 32, and in f32; OpenVINO also with its defaults, which depend on the CPU (bf16
with AMX). llama.cpp, which rounds activations to 8 bits, has a file of the same shapes in Q4_0
(fewer bytes: its scales have 16 bits), where the packages llama-cpp-python and gguf are installed.
Ours and llama.cpp compute the logits of a prompt's last position alone, the others those of all, as
the file says.

Engines run interleaved. Printed are medians, how many times as fast ours in the first precision is,
by medians of ratios of the rounds, and the share of the read bandwidth, of the same run, that our
steps have in weights, scales and caches. `--cpu-time` takes the process's time, for a loaded
machine and one thread, and waits for no cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
import onnx

from tests.compiler.decoders import Sizes, decoder
from tunefarm import tuner
from tunefarm.compiler.errors import UntunedWarning
from tunefarm.compiler.generation import Generator
from tunefarm.compiler.types.extents import Given
from tunefarm.measure.worker.roof import measure_read
from tunefarm.tuner.commands.bench import OURS
from tunefarm.tuner.commands.bench_generate import (
    Prompt,
    Timed,
    TokenStream,
    step_bytes,
    timed,
    token_streams,
)
from tunefarm.tuner.confirm.latency import pinned

_ROOM = 64
"""Tokens behind the longest prompt."""
ORT = "onnxruntime"
_GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
OPENVINO_PRECISIONS: dict[str, dict[str, str | int]] = {
    "f32": {"INFERENCE_PRECISION_HINT": "f32", _GROUP: 0},
    "int8": {"INFERENCE_PRECISION_HINT": "f32", _GROUP: 32},
    "defaults": {},
}
"""What OpenVINO computes with, by what it is told."""


def sizes_of(layers: int, positions: int) -> Sizes:
    """14 heads in 2 groups, 896 features: 130 MB in 4 bits with 12 layers."""
    return Sizes(layers, 14, 2, 64, 4864, 32000, positions, block=32)


def write(folder: Path, sizes: Sizes, threads: int) -> None:
    """The decoder in the form of each engine."""
    model = decoder("gqa", sizes)
    onnx.save(model, folder / "model.onnx")
    onnx.save(in_f32(model), folder / "f32.onnx")
    onnx.save(decoder("concat", sizes), folder / "plain.onnx")
    caches = {
        f"{when}_{kind}_names": f"{name}.%d.{kind}"
        for when, name in (("past", "past_key_values"), ("present", "present"))
        for kind in ("key", "value")
    }
    past = {name: text for name, text in caches.items() if name.startswith("past")}
    present = {name: text for name, text in caches.items() if name.startswith("present")}
    names = ("input_ids", "attention_mask", "position_ids")
    described = {
        "filename": "model.onnx",
        "session_options": {"intra_op_num_threads": threads, "provider_options": []},
        "head_size": sizes.width,
        "hidden_size": sizes.features,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.groups,
        "inputs": {**{name: name for name in names}, **past},
        "outputs": {"logits": "logits", **present},
    }
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = {**tokens, "type": "llama", "vocab_size": sizes.words, "decoder": described}
    config["context_length"] = sizes.positions
    search = {"past_present_share_buffer": True, "max_length": sizes.positions}
    text = json.dumps({"model": config, "search": search})
    (folder / "genai_config.json").write_text(text, "utf-8")
    if find_spec("gguf"):
        _write_gguf(folder / "model.gguf", sizes)


def in_f32(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, which no longer allows that activations are rounded to 8 bits."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
    return model


def _write_gguf(path: Path, sizes: Sizes) -> None:
    """llama.cpp's file of the same shapes."""
    import gguf

    random, inside = np.random.default_rng(0), sizes.groups * sizes.width
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(sizes.positions)
    writer.add_embedding_length(sizes.features)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.hidden)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.groups)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(sizes.width)
    writer.add_vocab_size(sizes.words)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, rows: int, columns: int) -> None:
        """Blocks of 32: a scale of 16 bits, then the numbers."""
        blocks = random.integers(0, 256, (rows * columns // 32, 18), np.uint8)
        blocks[:, :2] = np.array([columns**-0.5 / 4], np.float16).view(np.uint8)
        kind = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(f"{name}.weight", blocks.reshape(rows, -1), raw_dtype=kind)

    def scale(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(sizes.features, np.float32))

    table = random.standard_normal((sizes.words, sizes.features)).astype(np.float16)
    writer.add_tensor("token_embd.weight", table)
    for layer in range(sizes.layers):
        scale(f"blk.{layer}.attn_norm")
        for name, rows in (("q", sizes.features), ("k", inside), ("v", inside)):
            matrix(f"blk.{layer}.attn_{name}", rows, sizes.features)
        matrix(f"blk.{layer}.attn_output", sizes.features, sizes.features)
        scale(f"blk.{layer}.ffn_norm")
        for name in ("gate", "up"):
            matrix(f"blk.{layer}.ffn_{name}", sizes.hidden, sizes.features)
        matrix(f"blk.{layer}.ffn_down", sizes.features, sizes.hidden)
    scale("output_norm")
    matrix("output", sizes.words, sizes.features)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def our_generator(path: Path, longest: int, threads: int, precision: str) -> Generator:
    """Our build for all lengths: a program for single tokens, and one for prompts."""
    shapes: dict[str, tuple[Given, ...]] = {
        "batch_size": (1,),
        "sequence_length": (f"1|2..{longest}",),
        "past_sequence_length": (f"0..{longest + _ROOM - 1}",),
        "total_sequence_length": (f"1..{longest + _ROOM}",),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntunedWarning)
        built = tuner.build(
            path, shapes=shapes, inputs={"logits_to_keep": 1}, threads=threads, precision=precision
        )
    return Generator(built)


def openvino_stream(path: Path, sizes: Sizes, threads: int, precision: str) -> TokenStream:
    """OpenVINO with the decoder in plain operators and its caches as states.

    The `precision` is one of `OPENVINO_PRECISIONS`.
    """
    import openvino
    from openvino._offline_transformations import apply_make_stateful_transformation

    core, layers = openvino.Core(), range(sizes.layers)
    pairs = {
        f"past_key_values.{layer}.{kind}": f"present.{layer}.{kind}"
        for layer in layers
        for kind in ("key", "value")
    }
    model = core.read_model(path)
    cache = [1, sizes.groups, -1, sizes.width]
    names = ("input_ids", "attention_mask", "position_ids")
    model.reshape({**dict.fromkeys(pairs, cache), **{name: [1, -1] for name in names}})
    apply_make_stateful_transformation(model, pairs)
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        **OPENVINO_PRECISIONS[precision],
    }
    compiled = core.compile_model(model, "CPU", options)
    request = compiled.create_infer_request()

    def stream(ids: Prompt, count: int) -> Iterator[int]:
        request.reset_state()
        left, past = ids, 0
        for _ in range(count):
            total = past + len(left)
            places, mask = np.arange(past, total)[None], np.ones((1, total), np.int64)
            feed = {"input_ids": [left], "attention_mask": mask, "position_ids": places}
            logits = request.infer(feed, share_outputs=True)["logits"]
            left, past = [int(logits[0, -1].argmax())], total
            yield left[0]

    return stream


def llama_stream(path: Path, positions: int, threads: int) -> TokenStream:
    """llama.cpp, by the interface of its library."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    options = llama_cpp.llama_context_default_params()
    options.n_ctx, options.n_batch = positions, positions
    options.n_threads = options.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, options)
    words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def stream(ids: Prompt, count: int, _alive: object = quiet) -> Iterator[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        left = ids
        for _ in range(count):
            tokens = (llama_cpp.llama_token * len(left))(*left)
            if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(left))):
                raise SystemExit("llama.cpp failed")
            logits = llama_cpp.llama_get_logits_ith(context, -1)
            left = [int(np.ctypeslib.as_array(logits, (words,)).argmax())]
            yield left[0]

    return stream


def report(
    streams: dict[str, TokenStream],
    generators: dict[str, Generator],
    ids: Prompt,
    options: argparse.Namespace,
) -> None:
    """Print a line for each engine at one length."""
    runs: dict[str, list[Timed]] = {name: [] for name in streams}
    ours = next(iter(generators.values())).executable
    clock = time.process_time if options.cpu_time else time.perf_counter
    read, steps = 0.0, options.steps
    for stream in streams.values():
        timed(stream, ids, 2)  # memory is mapped
    for _ in range(options.rounds):
        for name, stream in streams.items():
            runs[name].append(timed(stream, ids, steps + 1, clock))
        read = max(read, measure_read(ours.spec.target, options.threads))
    base = next(iter(runs.values()))
    for name, found in runs.items():
        pairs = list(zip(base, found, strict=True))
        prompt, step = median(run.first for run in found), median(run.others for run in found)
        first = median(other.first / own.first for own, other in pairs)
        others = median(other.others / own.others for own, other in pairs)
        share = ""
        if name in generators:
            bytes = step_bytes(generators[name], len(ids) + steps / 2) * steps / step
            share = f"  {bytes / read:.2f} of {read / 1e9:.1f} GB/s"
        print(
            f"{len(ids):5} tokens  {name:26} prompt {1e3 * prompt:8.1f} ms ({first:5.2f})"
            f"  decode {steps / step:7.1f} tokens/s ({others:5.2f}){share}",
            flush=True,
        )


def main(arguments: list[str] | None = None) -> int:
    """The command of this module."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.language_models")
    parser.add_argument("--lengths", default="64,512,2000")
    parser.add_argument("--precisions", default="default,int8-activations")
    parser.add_argument("--engines", help="only these, separated by commas, besides ours")
    parser.add_argument("--cpu-time", action="store_true")
    for name, default in (("threads", 1), ("layers", 12), ("steps", 16), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    lengths = [int(length) for length in options.lengths.split(",")]
    sizes = sizes_of(options.layers, max(lengths) + 2 * _ROOM)
    own_cores = nullcontext() if options.cpu_time else pinned(options.threads)
    with tempfile.TemporaryDirectory() as temporary, own_cores:
        folder = Path(temporary)
        write(folder, sizes, options.threads)
        path = folder / "model.onnx"
        generators = {
            f"{OURS}, {name}": our_generator(path, max(lengths), options.threads, name)
            for name in options.precisions.split(",")
        }
        first = next(iter(generators.values()))
        streams = token_streams(str(path), first)
        own = {
            name: token_streams(str(path), generator)[OURS]
            for name, generator in generators.items()
        }
        del streams[OURS]
        streams[f"{ORT}, f32"] = token_streams(str(folder / "f32.onnx"), first)[ORT]
        for name in OPENVINO_PRECISIONS:
            stream = openvino_stream(folder / "plain.onnx", sizes, options.threads, name)
            streams[f"OpenVINO, {name}"] = stream
        if find_spec("llama_cpp") and find_spec("gguf"):
            file = folder / "model.gguf"
            streams["llama.cpp"] = llama_stream(file, sizes.positions, options.threads)
        if options.engines is not None:
            streams = {name: streams[name] for name in options.engines.split(",")}
        for length in lengths:
            ids = np.random.default_rng(1).integers(3, sizes.words, length).tolist()
            report(own | streams, generators, ids, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
