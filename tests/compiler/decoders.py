"""Small decoders with seeded weights, in the forms that exporters write.

concat    the past and the new keys joined, masked scores, Softmax: optimum and others
gqa       GroupQueryAttention after RotaryEmbedding: onnxruntime-genai's builder
rotary    the same with the rotation inside of GroupQueryAttention, without positions
merged    optimum's merged decoder: an If between a prompt's branch and a step's
torch     torch's exporter: names with underscores, sizes as `Shape` computes them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

FORMS = ("concat", "gqa", "rotary", "merged", "torch")
MICROSOFT = "com.microsoft"
_LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Sizes:
    """Of a decoder; `positions` is how many its rotary tables have.

    Weights have 4 bits in a `block` of so many inputs that have a scale, and are floats with 0.
    """

    layers: int = 2
    heads: int = 4
    groups: int = 2
    width: int = 16
    hidden: int = 96
    words: int = 97
    positions: int = 256
    block: int = 0

    @property
    def features(self) -> int:
        return self.heads * self.width


@dataclass
class Nodes:
    """Nodes and weights of a graph under way; branches share the weights of their model."""

    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def add(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str,
        domain: str = "",
        **attributes: object,
    ) -> str:
        node = helper.make_node(operator, inputs, [output], name=f"n_{output}", domain=domain)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        self.nodes.append(node)
        return output

    def constant(self, name: str, value: npt.ArrayLike, dtype: type = np.int64) -> str:
        self.weights[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def weight(self, name: str, *shape: int) -> str:
        random = np.random.default_rng([self.seed, *name.encode()])
        values = random.standard_normal(shape) / np.sqrt(shape[0] if len(shape) > 1 else 1)
        return self.constant(name, values, np.float32)

    def packed(self, name: str, rows: int, columns: int, block: int) -> list[str]:
        """A matrix in 4 bits as MatMulNBits takes it: the numbers and their scales."""
        random = np.random.default_rng([self.seed, *name.encode()])
        values = random.standard_normal((columns, rows // block, block)) / np.sqrt(rows)
        scales = np.abs(values).max(axis=-1) / 7
        numbers = (np.rint(values / scales[..., None]) + 8).astype(np.uint8)
        pairs = numbers[..., 0::2] | numbers[..., 1::2] << 4
        return [
            self.constant(f"{name}.packed", pairs, np.uint8),
            self.constant(f"{name}.scales", scales.reshape(-1), np.float32),
        ]

    def scale(self, name: str, count: int) -> str:
        return self.constant(name, np.ones(count), np.float32)


def decoder(
    form: str,
    sizes: Sizes | None = None,
    past: int | str | None = None,
    nodes: Nodes | None = None,
) -> onnx.ModelProto:
    """A decoder in one of `FORMS`; `past` is the length of its caches, dynamic if None.

    Its nodes and weights are added to `nodes`.
    """
    sizes = sizes or Sizes()
    net = nodes or Nodes()
    past = past or "past_sequence_length"
    total = past if isinstance(past, int) else _total(form)
    layers = range(sizes.layers)
    befores = [
        helper.make_tensor_value_info(
            _cache(form, "past", layer, kind),
            TensorProto.FLOAT,
            ["batch_size", sizes.groups, past, sizes.width],
        )
        for layer in layers
        for kind in ("key", "value")
    ]
    afters = [
        helper.make_tensor_value_info(
            _cache(form, "present", layer, kind),
            TensorProto.FLOAT,
            ["batch_size", sizes.groups, total, sizes.width],
        )
        for layer in layers
        for kind in ("key", "value")
    ]
    logits = helper.make_tensor_value_info(
        "logits", TensorProto.FLOAT, ["batch_size", "sequence_length", sizes.words]
    )
    inputs = [_integers("input_ids", "sequence_length"), _integers("attention_mask", _total(form))]
    inputs += [] if form == "rotary" else [_integers("position_ids", "sequence_length")]
    if form == "merged":
        inputs.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
        branches = []
        for name, cached in (("then", True), ("else", False)):
            branch = Nodes(net.seed)
            _decoder(branch, "concat", sizes, f"{name}_", cached=cached)
            net.weights |= branch.weights
            outputs = [
                helper.make_tensor_value_info(f"{name}_{info.name}", TensorProto.FLOAT, None)
                for info in (logits, *afters)
            ]
            branches.append(helper.make_graph(branch.nodes, name, [], outputs))
        node = helper.make_node(
            "If",
            ["use_cache_branch"],
            [info.name for info in (logits, *afters)],
            name="optimum::if",
            then_branch=branches[0],
            else_branch=branches[1],
        )
        net.nodes.append(node)
    else:
        _decoder(net, form, sizes, "", cached=True)
    graph = helper.make_graph(
        net.nodes, form, [*inputs, *befores], [logits, *afters], list(net.weights.values())
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _integers(name: str, length: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", length])


def _total(form: str) -> str:
    return {"merged": "past_sequence_length + sequence_length"}.get(form, "total_sequence_length")


def _cache(form: str, when: str, layer: int, kind: str) -> str:
    if form == "torch":
        return (
            f"past_key_values_{kind}_cache_{layer}" if when == "past" else f"present_{kind}_{layer}"
        )
    return f"past_key_values.{layer}.{kind}" if when == "past" else f"present.{layer}.{kind}"


def _decoder(net: Nodes, form: str, sizes: Sizes, prefix: str, *, cached: bool) -> None:
    """The layers; values of a branch have a `prefix`, weights have none."""
    body = _Body(net, form, sizes, prefix, cached)
    body.write()


@dataclass
class _Body:
    net: Nodes
    form: str
    sizes: Sizes
    prefix: str
    cached: bool

    def add(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str,
        domain: str = "",
        **attributes: object,
    ) -> str:
        return self.net.add(operator, inputs, self.prefix + output, domain, **attributes)

    @property
    def grouped(self) -> bool:
        return self.form in ("gqa", "rotary")

    def write(self) -> None:
        net, sizes = self.net, self.sizes
        self._tables()
        table = net.weight("embed", sizes.words, sizes.features)
        data = self.add("Gather", [table, "input_ids"], "embedded")
        self._lengths() if self.grouped else self._mask()
        for layer in range(sizes.layers):
            name = f"l{layer}."
            normal = self._norm(data, f"{name}norm1")
            data = self.add("Add", [data, self._attention(normal, layer)], f"{name}sum1")
            normal = self._norm(data, f"{name}norm2")
            gate = self._dense(normal, f"{name}gate", sizes.features, sizes.hidden)
            gate = self.add("Mul", [gate, self.add("Sigmoid", [gate], f"{name}sig")], f"{name}silu")
            up = self._dense(normal, f"{name}up", sizes.features, sizes.hidden)
            down = self.add("Mul", [gate, up], f"{name}gated")
            down = self._dense(down, f"{name}down", sizes.hidden, sizes.features)
            data = self.add("Add", [data, down], f"{name}sum2")
        data = self._norm(data, "norm")
        self._dense(data, "logits", sizes.features, sizes.words)

    def _dense(self, data: str, name: str, rows: int, columns: int) -> str:
        if self.sizes.block:
            packed = self.net.packed(f"{name}.weight", rows, columns, self.sizes.block)
            return self.add(
                "MatMulNBits",
                [data, *packed],
                name,
                MICROSOFT,
                K=rows,
                N=columns,
                bits=4,
                block_size=self.sizes.block,
                accuracy_level=4,
            )
        return self.add("MatMul", [data, self.net.weight(f"{name}.weight", rows, columns)], name)

    def _norm(self, data: str, name: str) -> str:
        scale = self.net.scale(f"{name}.scale", self.sizes.features)
        if self.grouped:
            return self.add(
                "SimplifiedLayerNormalization",
                [data, scale],
                name,
                axis=-1,
                epsilon=1e-6,
                stash_type=1,
            )
        two = self.net.constant("two", 2.0, np.float32)
        tiny = self.net.constant("tiny", 1e-6, np.float32)
        squares = self.add("Pow", [data, two], f"{name}.squares")
        mean = self.add("ReduceMean", [squares], f"{name}.mean", axes=[-1], keepdims=1)
        root = self.add("Sqrt", [self.add("Add", [mean, tiny], f"{name}.more")], f"{name}.root")
        return self.add("Mul", [self.add("Div", [data, root], f"{name}.divided"), scale], name)

    def _tables(self) -> None:
        pairs = self.sizes.width // 2
        angles = np.outer(np.arange(self.sizes.positions), 10000.0 ** -(np.arange(pairs) / pairs))
        self.net.constant("cos_cache", np.cos(angles), np.float32)
        self.net.constant("sin_cache", np.sin(angles), np.float32)

    def _lengths(self) -> None:
        one = self.net.constant("axis1", [1])
        total = self.add("ReduceSum", ["attention_mask", one], "mask.sum", keepdims=0)
        last = self.add("Sub", [total, self.net.constant("one", [1])], "mask.last")
        self.add("Cast", [last], "seqlens_k", to=TensorProto.INT32)
        shape = self.add("Shape", ["attention_mask"], "mask.shape")
        length = self.add("Gather", [shape, self.net.constant("at1", 1)], "mask.length", axis=0)
        self.add("Cast", [length], "total_seq_len", to=TensorProto.INT32)

    def _mask(self) -> None:
        """Causal and of the keys that attention_mask has, [batch, 1, tokens, keys]."""
        net, add = self.net, self.add
        shape = add("Shape", ["attention_mask"], "mask.shape")
        total = add("Gather", [shape, net.constant("at1", 1)], "mask.total", axis=0)
        zero, one = net.constant("zero", 0), net.constant("step", 1)
        keys = add("Range", [zero, total, one], "mask.keys")
        # The place of a query is that of its token among all of them.
        ids = add("Gather", [add("Shape", ["input_ids"], "ids.shape"), "at1"], "ids.count", axis=0)
        first = add("Sub", [total, ids], "mask.first")
        rows = add("Range", [first, total, one], "mask.rows")
        rows = add("Unsqueeze", [rows, net.constant("axis1", [1])], "mask.rows.wide")
        later = add("Greater", [keys, rows], "mask.later")
        lowest = net.constant("lowest", _LOWEST, np.float32)
        none = net.constant("none", 0.0, np.float32)
        causal = add("Where", [later, lowest, none], "mask.causal")
        wide = add("Unsqueeze", ["attention_mask", net.constant("axes12", [1, 2])], "mask.wide")
        given = add("Cast", [wide], "mask.given", to=TensorProto.BOOL)
        self.add("Where", [given, causal, lowest], "mask")

    def _attention(self, data: str, layer: int) -> str:
        sizes, name = self.sizes, f"l{layer}."
        inside = sizes.groups * sizes.width
        query = self._dense(data, f"{name}q", sizes.features, sizes.features)
        key = self._dense(data, f"{name}k", sizes.features, inside)
        value = self._dense(data, f"{name}v", sizes.features, inside)
        context = (
            self._grouped(query, key, value, layer)
            if self.grouped
            else self._spelled(query, key, value, layer)
        )
        return self._dense(context, f"{name}o", sizes.features, sizes.features)

    def _grouped(self, query: str, key: str, value: str, layer: int) -> str:
        sizes, tables = self.sizes, ["cos_cache", "sin_cache"]
        inner = self.form == "rotary"
        if not inner:
            query, key = (
                self.add(
                    "RotaryEmbedding",
                    [item, "position_ids", *tables],
                    f"{item}.rotated",
                    MICROSOFT,
                    num_heads=count,
                    rotary_embedding_dim=sizes.width,
                )
                for item, count in ((query, sizes.heads), (key, sizes.groups))
            )
        past = [_cache(self.form, "past", layer, kind) for kind in ("key", "value")]
        present = [_cache(self.form, "present", layer, kind) for kind in ("key", "value")]
        node = helper.make_node(
            "GroupQueryAttention",
            [query, key, value, *past, "seqlens_k", "total_seq_len", *(tables if inner else [])],
            [f"l{layer}.context", *present],
            name=f"gqa{layer}",
            domain=MICROSOFT,
            num_heads=sizes.heads,
            kv_num_heads=sizes.groups,
            do_rotary=int(inner),
            scale=float(sizes.width**-0.5),
        )
        self.net.nodes.append(node)
        return f"l{layer}.context"

    def _spelled(self, query: str, key: str, value: str, layer: int) -> str:
        sizes, net, name = self.sizes, self.net, f"l{layer}."
        parts = {}
        for kind, item, count in (
            ("q", query, sizes.heads),
            ("key", key, sizes.groups),
            ("value", value, sizes.groups),
        ):
            shape = net.constant(f"heads{count}", [0, 0, count, sizes.width])
            split = self.add("Reshape", [item, shape], f"{name}{kind}.split")
            split = self.add("Transpose", [split], f"{name}{kind}.heads", perm=[0, 2, 1, 3])
            if kind != "value":
                split = self._rotated(split, f"{name}{kind}.")
            if kind != "q":
                output = _cache(self.form, "present", layer, kind)
                joined = [_cache(self.form, "past", layer, kind)] if self.cached else []
                split = self.add("Concat", [*joined, split], output, axis=2)
                split = self._repeated(split, f"{name}{kind}.", sizes.heads // sizes.groups)
            parts[kind] = split
        turned = self.add("Transpose", [parts["key"]], f"{name}turned", perm=[0, 1, 3, 2])
        scores = self.add("MatMul", [parts["q"], turned], f"{name}scores")
        scale = net.constant("scale", sizes.width**-0.5, np.float32)
        scores = self.add("Mul", [scores, scale], f"{name}scaled")
        scores = self.add("Add", [scores, f"{self.prefix}mask"], f"{name}masked")
        weights = self.add("Softmax", [scores], f"{name}weights", axis=-1)
        context = self.add("MatMul", [weights, parts["value"]], f"{name}context")
        context = self.add("Transpose", [context], f"{name}context.tokens", perm=[0, 2, 1, 3])
        return self.add(
            "Reshape",
            [context, net.constant("flat", [0, 0, sizes.features])],
            f"{name}context.flat",
        )

    def _rotated(self, data: str, name: str) -> str:
        net, half = self.net, self.sizes.width // 2
        tables = []
        for table in ("cos", "sin"):
            rows = self.add("Gather", [f"{table}_cache", "position_ids"], f"{name}{table}.rows")
            rows = self.add("Concat", [rows, rows], f"{name}{table}.both", axis=-1)
            tables.append(
                self.add("Unsqueeze", [rows, net.constant("axis1", [1])], f"{name}{table}")
            )
        ends = [net.constant(f"at_{at}", [at]) for at in (0, half, 2 * half)]
        axis = net.constant("axis3", [3])
        first = self.add("Slice", [data, ends[0], ends[1], axis], f"{name}first")
        second = self.add("Slice", [data, ends[1], ends[2], axis], f"{name}second")
        turned = self.add(
            "Concat",
            [self.add("Neg", [second], f"{name}negative"), first],
            f"{name}turned",
            axis=-1,
        )
        by_cos = self.add("Mul", [data, tables[0]], f"{name}by_cos")
        return self.add(
            "Add", [by_cos, self.add("Mul", [turned, tables[1]], f"{name}by_sin")], f"{name}rotated"
        )

    def _repeated(self, data: str, name: str, count: int) -> str:
        """Each group for its heads."""
        net, sizes = self.net, self.sizes
        wide = self.add("Unsqueeze", [data, net.constant("axis2", [2])], f"{name}wide")
        spread = self.add(
            "Expand", [wide, net.constant("spread", [1, 1, count, 1, 1])], f"{name}spread"
        )
        return self.add(
            "Reshape",
            [spread, net.constant("joined", [0, sizes.heads, -1, sizes.width])],
            f"{name}joined",
        )


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with f16 instead of f32 everywhere."""
    graph, half = model.graph, TensorProto.FLOAT16
    tensors = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = half
            if attribute.HasField("t"):
                tensors.append(attribute.t)
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).clip(-65504, 65504).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = half
    return model
