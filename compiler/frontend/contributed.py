"""The forms of onnxruntime's own operators, which ONNX has no schema of, as signatures.

As its documentation has them (docs/ContribOperators.md), a line each: inputs, attributes, and the
minimum and maximum number of outputs. An input is NAME:TYPE, with ? if it may be absent, and * if
it stands for any number, of different types; types of the same name are equal. An attribute is
NAME:KIND, with ! if it must be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from onnx import AttributeProto

from tunefarm.compiler.frontend.signature import Formal, Signature

_FLOATS = ("float", "float16", "bfloat16")
_ALL = (
    *_FLOATS,
    *("double", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)

_TYPES: Mapping[str, tuple[str, ...]] = {
    "T": _FLOATS,
    "F": ("float",),
    "S": _FLOATS,
    "D": (*_FLOATS, "double"),
    "M": ("int32",),
    "L": ("int64",),
    "I": ("int32", "int64"),
    "B": ("uint8", "int8"),
    "H": ("int16",),
    "Q": ("uint8", "int8", "uint16", "int16", "int32", "uint4", "int4"),
    "N": ("uint8", "int32"),
    "P": (*_FLOATS, "uint8", "int32"),
    "V": ("uint8", "int8", "float"),
    "Z": ("bool",),
    "K": (*_FLOATS, "int8", "uint8"),
    "A": _ALL,
    "C": _ALL,
    "G": ("uint8", "int8", "uint4", "int4"),
}
"""Element types by the first letter of a type's name."""

_LSTM = (
    "input_forget:int activations:strings clip:float activation_beta:floats "
    "activation_alpha:floats hidden_size:int direction:string"
)
_WINDOWS = "auto_pad:string dilations:ints kernel_shape:ints pads:ints strides:ints"
_ATTENTION = (
    "num_heads:int! scale:float mask_filter_value:float unidirectional:int do_rotary:int "
    "rotary_embedding_dim:int past_present_share_buffer:int"
)
_MULTI = (
    "query:T key:T? value:T? bias:T? key_padding_mask:M? attention_bias:T? past_key:T? "
    "past_value:T? past_sequence_length:M? cache_indirection:M?"
)
_GROUPED = (
    "query:T key:T? value:T? past_key:K? past_value:K? seqlens_k:M total_sequence_length:M "
    "cos_cache:T? sin_cache:T? position_ids:L? attention_bias:T? head_sink:T? k_scale:F? "
    "v_scale:F? q_norm_weight:T? k_norm_weight:T?"
)
_EMBED = (
    "input_ids:M segment_ids:M? word_embedding:T position_embedding:T segment_embedding:T? "
    "gamma:T beta:T mask:M? position_ids:M?"
)

_BINARY = (
    "A:B1 A_scale:F A_zero_point:B2? B:B3 B_scale:F B_zero_point:B4? C_scale:F C_zero_point:B5?"
)
_UNARY = "X:B1 X_scale:F X_zero_point:B2? Y_scale:F Y_zero_point:B3?"

# operator: inputs, attributes, the minimum and maximum number of outputs
_Form = tuple[str, str, tuple[int, int]]

_MICROSOFT: Mapping[str, _Form] = {
    "Attention": (
        "input:T weights:T bias:T? mask_index:M? past:T? attention_bias:T? past_sequence_length:M?",
        f"{_ATTENTION} qkv_hidden_sizes:ints",
        (1, 2),
    ),
    "BiasAdd": ("X:T bias:T skip:T", "", (1, 1)),
    "BiasDropout": ("data:T bias:T residual:T? ratio:S? training_mode:C?", "seed:int", (1, 2)),
    "BiasGelu": ("A:T B:T", "", (1, 1)),
    "BiasSoftmax": ("data:T bias:T", "axis:int is_inner_broadcast:int!", (1, 1)),
    "BiasSplitGelu": ("X:T bias:T", "", (1, 1)),
    "CausalConvWithState": (
        "input:T weight:T bias:T? past_state:T?",
        "activation:string ndim:int dilation:int channels_last:int state_channels_last:int "
        "state_window:int state_length:int state_update_capacity:int input_channels:int "
        "input_channel_offset:int",
        (1, 2),
    ),
    "LinearAttention": (
        "query:T key:T value:T past_state:S? decay:T? beta:T?",
        "chunk_size:int kv_num_heads:int! q_num_heads:int! scale:float update_rule:string "
        "state_window:int",
        (1, 2),
    ),
    "CDist": ("A:D B:D", "metric:string", (1, 1)),
    "ConvTransposeWithDynamicPads": (
        "X:T W:T Pads:L? B:T?",
        "auto_pad:string dilations:ints group:int kernel_shape:ints output_padding:ints "
        "strides:ints",
        (1, 1),
    ),
    "DecoderMaskedMultiHeadAttention": (
        "query:T key:T? value:T? mask_index:M? attention_bias:T? past_key:T? past_value:T? "
        "past_sequence_length:M? beam_width:M? cache_indirection:M? bias:T?",
        "num_heads:int! scale:float mask_filter_value:float past_present_share_buffer:int "
        "output_qk:int",
        (1, 4),
    ),
    "DynamicQuantizeLSTM": (
        "X:F W:B R:B B:F? sequence_lens:M? initial_h:F? initial_c:F? P:F? W_scale:F "
        "W_zero_point:B R_scale:F R_zero_point:B",
        _LSTM,
        (0, 3),
    ),
    "DequantizeLinear": ("x:Q x_scale:T x_zero_point:Q?", "axis:int block_size:int", (1, 1)),
    "DynamicQuantizeMatMul": ("A:F B:B b_scale:F b_zero_point:B? bias:F?", "", (1, 1)),
    "EmbedLayerNormalization": (_EMBED, "epsilon:float mask_index_type:int", (1, 3)),
    "ExpandDims": ("X:A axis:M", "", (1, 1)),
    "FastGelu": ("X:T bias:T?", "", (1, 1)),
    "FusedConv": (
        "X:T W:T B:T? Z:T?",
        f"{_WINDOWS} group:int activation:string activation_params:floats",
        (1, 1),
    ),
    "FusedGemm": (
        "A:D B:D C:D?",
        "transA:int transB:int alpha:float beta:float activation:string activation_alpha:float "
        "activation_beta:float activation_gamma:float",
        (1, 1),
    ),
    "FusedMatMul": (
        "A:D B:D",
        "alpha:float transA:int transB:int transBatchA:int transBatchB:int",
        (1, 1),
    ),
    "GatedAdd": ("X:T Y:T gate:T", "", (1, 1)),
    "GatedRMSNorm": ("X:T scale:T gate:T", "activation:string epsilon:float", (1, 1)),
    "GatherBlockQuantized": (
        "data:G indices:I scales:T zero_points:G?",
        "bits:int block_size:int gather_axis:int quantize_axis:int",
        (1, 1),
    ),
    "GatherND": ("data:A indices:I", "", (1, 1)),
    "Gelu": ("X:T", "", (1, 1)),
    "GridSample": ("X:T Grid:T", "align_corners:int mode:string padding_mode:string", (1, 1)),
    "GroupNorm": (
        "X:T gamma:S beta:S",
        "activation:int! channels_last:int epsilon:float groups:int!",
        (1, 1),
    ),
    "GroupQueryAttention": (
        _GROUPED,
        "num_heads:int! kv_num_heads:int! scale:float softcap:float do_rotary:int causal:int "
        "rotary_interleaved:int local_window_size:int smooth_softmax:int qk_output:int "
        "k_quant_type:string v_quant_type:string kv_cache_bit_width:int sliding_window_cache:int "
        "qk_norm_epsilon:float",
        (1, 4),
    ),
    "MatMulIntegerToFloat": (
        "A:B1 B:B2 a_scale:F b_scale:F a_zero_point:B1? b_zero_point:B2? bias:F?",
        "",
        (1, 1),
    ),
    "MatMulNBits": (
        "A:T B:N scales:T zero_points:P? g_idx:M? bias:T?",
        "K:int! N:int! block_size:int! bits:int accuracy_level:int weight_prepacked:int",
        (1, 1),
    ),
    "MatMulInteger16": ("A:H B:H", "", (1, 1)),
    "MultiHeadAttention": (
        _MULTI,
        "num_heads:int! scale:float mask_filter_value:float unidirectional:int",
        (1, 4),
    ),
    "NhwcConv": ("X:T W:T B:T?", f"{_WINDOWS} group:int", (1, 1)),
    "NhwcMaxPool": ("x:B", f"{_WINDOWS} ceil_mode:int", (1, 1)),
    "Pad": ("data:T pads:L value:T?", "mode:string", (1, 1)),
    "QAttention": (
        "input:B1 weight:B2 bias:F input_scale:F weight_scale:F mask_index:M? "
        "input_zero_point:B1? weight_zero_point:B2? past:F?",
        _ATTENTION,
        (1, 2),
    ),
    "QGemm": (
        "A:B1 A_scale:F A_zero_point:B2? B:B3 B_scale:F B_zero_point:B4? C:M? Y_scale:F? "
        "Y_zero_point:B5?",
        "transA:int transB:int alpha:float",
        (1, 1),
    ),
    "QLinearAdd": (_BINARY, "", (1, 1)),
    "QLinearAveragePool": (
        _UNARY,
        "auto_pad:string ceil_mode:int channels_last:int count_include_pad:int "
        "kernel_shape:ints! pads:ints strides:ints",
        (1, 1),
    ),
    "QLinearConcat": ("Y_scale:F Y_zero_point:B? inputs:V*", "axis:int!", (1, 1)),
    "QLinearConv": (
        "x:B1 x_scale:F x_zero_point:B1 w:B2 w_scale:F w_zero_point:B2 y_scale:F y_zero_point:B3 "
        "B:M?",
        f"{_WINDOWS} group:int channels_last:int",
        (1, 1),
    ),
    "QLinearGlobalAveragePool": (_UNARY, "channels_last:int", (1, 1)),
    "QLinearLeakyRelu": (_UNARY, "alpha:float", (1, 1)),
    "QLinearMul": (_BINARY, "", (1, 1)),
    "QLinearReduceMean": (_UNARY, "axes:ints! keepdims:int!", (1, 1)),
    "QLinearSigmoid": (_UNARY, "", (1, 1)),
    "QLinearSoftmax": (_UNARY, "axis:int opset:int!", (1, 1)),
    "QLinearWhere": (
        "condition:Z X:B1 X_scale:F X_zero_point:B2? Y:B3 Y_scale:F Y_zero_point:B4? Z_scale:F "
        "Z_zero_point:B5?",
        "",
        (1, 1),
    ),
    "QuantizeLinear": (
        "x:T y_scale:T y_zero_point:Q?",
        "axis:int saturate:int block_size:int",
        (1, 1),
    ),
    "QuickGelu": ("X:T", "alpha:float", (1, 1)),
    "Range": ("start:C limit:C delta:C?", "", (1, 1)),
    "RotaryEmbedding": (
        "input:T position_ids:L cos_cache:T sin_cache:T",
        "interleaved:int is_packed_batching:int num_heads:int rotary_embedding_dim:int scale:float",
        (1, 1),
    ),
    "SampleOp": ("X:T", "", (1, 1)),
    "ScaledSiLU": ("X:T scale:S?", "alpha:float", (1, 1)),
    "SkipGroupNorm": (
        "X:T gamma:S beta:S skip:T bias:T?",
        "activation:int! channels_last:int epsilon:float groups:int!",
        (1, 2),
    ),
    "SkipLayerNormalization": ("input:T skip:T gamma:T beta:T? bias:T?", "epsilon:float", (1, 4)),
    "SkipSimplifiedLayerNormalization": (
        "input:T skip:T gamma:T bias:T?",
        "epsilon:float",
        (1, 4),
    ),
    "TransposeMatMul": ("A:D B:D", "alpha:float transA:int transB:int", (1, 1)),
    "Trilu": ("X:A k:L?", "upper:int", (1, 1)),
    "UnfoldTensor": ("input:A", "dim:int size:int! step:int", (1, 1)),
}

_NORMALISED = "axis:int epsilon:float stash_type:int"
_ONNX: Mapping[str, _Form] = {
    "LayerNormalization": ("X:T Scale:S B:S?", _NORMALISED, (1, 3)),
    "SimplifiedLayerNormalization": ("X:T scale:S", _NORMALISED, (1, 2)),
}
"""Those that it adds to ONNX's own domain, for opsets in which ONNX has none of the name."""

_ONE_MACHINE = "onnxruntime wrote it for the vectors of one machine: save the model at level " + (
    "extended, not all"
)
_GENERATES = "it is a whole search for tokens round decoders: build its decoder, and search outside"
_GPU = "it is for graphics processors alone"
_DATA = "the size of its result depends on its data"
_EXPERTS = "a router picks the experts of each token while the model runs"

REFUSED: Mapping[str, str] = {
    "BeamSearch": _GENERATES,
    "BifurcationDetector": _DATA,
    "EPContext": "it holds another compiler's code",
    "GreedySearch": _GENERATES,
    "MoE": _EXPERTS,
    "PackedAttention": _GPU,
    "PackedMultiHeadAttention": _GPU,
    "PagedAttention": _GPU,
    "QMoE": _EXPERTS,
    "QOrderedAttention": _GPU,
    "QOrderedGelu": _GPU,
    "QOrderedLayerNormalization": _GPU,
    "QOrderedLongformerAttention": _GPU,
    "QOrderedMatMul": _GPU,
    "RemovePadding": _GPU,
    "RestorePadding": _GPU,
    "Sampling": _GENERATES,
    "Snpe": "it holds another compiler's code",
    "SparseAttention": "its keys are chosen in blocks by a pattern that is an input",
    "SparseToDenseMatMul": "sparse tensors",
    "WhisperBeamSearch": _GENERATES,
}
"""Operators of the domain com.microsoft that cannot be imported, and why."""

REFUSED_DOMAINS: Mapping[str, str] = {
    "com.microsoft.nchwc": _ONE_MACHINE,
    "com.ms.internal.nhwc": _ONE_MACHINE,
}
"""Domains all of whose operators are refused, and why."""

_ANY = 2**31 - 1  # inputs
_KINDS = {
    "int": AttributeProto.INT,
    "ints": AttributeProto.INTS,
    "float": AttributeProto.FLOAT,
    "floats": AttributeProto.FLOATS,
    "string": AttributeProto.STRING,
    "strings": AttributeProto.STRINGS,
}


@cache
def contributed_signature(domain: str, operator: str) -> Signature | None:
    """The signature of an operator of another's domain, None for those that are not known."""
    form = {"com.microsoft": _MICROSOFT, "": _ONNX}.get(domain, {}).get(operator)
    return None if form is None else _signature(*form)


def refusal(domain: str, operator: str) -> str:
    """Why an operator that other software writes cannot be imported; "" where nothing is known."""
    if domain == "com.microsoft" and operator in REFUSED:
        return REFUSED[operator]
    return REFUSED_DOMAINS.get(domain, "")


def _signature(inputs: str, attributes: str, outputs: tuple[int, int]) -> Signature:
    """The signature that a line of the table says."""
    formals = []
    for item in inputs.split():
        name, _, type = item.rstrip("?*").partition(":")
        allowed = frozenset(f"tensor({element})" for element in _TYPES[type[0]])
        formals.append(Formal(name, type, allowed, item[-1] != "?", item[-1] != "*"))
    needed = max(at for at, formal in enumerate(formals, 1) if formal.required)
    is_variadic = not formals[-1].homogeneous
    kinds = dict(item.rstrip("!").split(":") for item in attributes.split())
    return Signature(
        since_version=1,
        deterministic=True,
        has_body=False,
        min_inputs=needed,
        max_inputs=_ANY if is_variadic else len(formals),
        min_outputs=outputs[0],
        max_outputs=outputs[1],
        inputs=tuple(formals),
        variadic=is_variadic,
        attributes=MappingProxyType({name: _KINDS[kind] for name, kind in kinds.items()}),
        required=tuple(i.split(":")[0] for i in attributes.split() if i.endswith("!")),
    )
