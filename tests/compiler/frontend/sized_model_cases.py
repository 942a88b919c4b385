"""Several operators in a row on data of dynamic shapes."""

from __future__ import annotations

from tests.compiler.frontend.sized_cases import Case, case, floats, on_rows, on_shapes, with_second


def _recurrent(op: str, g: int, d: int = 1, how: str = "") -> Case:
    """On x [steps, batch, 4]."""
    results = "y h c" if op == "LSTM" else "y h"
    return case(
        "x[s,b,4]",
        f"{results} = {op} x w r bb hidden_size=3 {how}",
        "s 1..7: 1 5 7, b 1..3: 2 1 3",
        outputs=("y", "h"),
        w=floats(d, 3 * g, 4),
        r=floats(d, 3 * g, 3),
        bb=floats(d, 6 * g),
    )


HALF = "s = Gather shape 1; hs = Div s 2; hu = Unsqueeze hs [0]"
"""Nodes from x's shape to half of its length, hu."""


def _resized(height_and_width: str, how: str) -> str:
    """x resized to what nodes make of its shape sx: to_hw."""
    return (
        f"sx = Shape x; {height_and_width}; nc = Slice sx [0] [2]; "
        f"to = Concat nc to_hw axis=0; Resize x _ _ to {how}"
    )


_AXIS = "b 1..3: 2, s 3..7: 3 5 4 7"

MORE_CASES: dict[str, Case] = {
    "lstm": _recurrent("LSTM", 4),
    "gru": _recurrent("GRU", 3),
    "rnn": _recurrent("RNN", 1),
    "lstm_bi": _recurrent("LSTM", 4, 2, "direction=bidirectional"),
    "gru_rev": _recurrent("GRU", 3, 1, "direction=reverse"),
    "einsum": with_second("Einsum x z equation=bsd,btd->bst", "b,s,6"),
    "einsum2": with_second("Einsum x z equation=bsd,bsd->bd", "b,s,6"),
    "scatter_elements": case(
        "x[b,s,6] int i[b,s,6] u[b,s,6]", "ScatterElements x i u axis=1", "b 1..3: 2 1, s 3..7: 3 5"
    ),
    "scatter_nd": case("x[s,6] int i[n,1] u[n,6]", "ScatterND x i u", "s 3..7: 3 6, n 1..3: 2 3"),
    "gather_elements": case(
        "x[b,s,6] int i[b,s,6]", "GatherElements x i axis=1", "b 1..3: 2 1, s 3..7: 3 5"
    ),
    "gather_elements of fewer rows": case(
        "x[4,6] int i[n,3]", "GatherElements x i axis=1", "n 1..9: 2 4 1"
    ),
    "layer norm of a scale of any size": case(
        "x[b,3,4] z[n,4]", "LayerNormalization x z axis=1", "b 1..3: 2, n 1..5: 3"
    ),
    "reduced along a computed axis": case(
        "x[b,s,6] int i[1]",
        "ReduceMean x i keepdims=0",
        _AXIS,
    ),
    "reduced along a computed axis that stays": case(
        "x[b,s,6] int i[1]",
        "ReduceL2 x i",
        _AXIS,
    ),
    "summed along a computed axis": case(
        "x[b,s,6] int i[]",
        "CumSum x i reverse=1",
        _AXIS,
    ),
    "unsqueezed at a computed axis": case(
        "x[b,s] int i[1]",
        "Unsqueeze x i",
        _AXIS,
    ),
    "gather_ids": case(
        "int i[b,s]", "Gather table i", "b 1..3: 2 1, s 1..7: 3 5", table=floats(9, 4)
    ),
    "gather_nd": case(
        "x[b,s,6] int i[b,1]", "GatherND x i batch_dims=1", "b 1..3: 2 1, s 3..7: 3 5"
    ),
    "one_hot": case("int i[b,s]", "OneHot i 4 [0.0,1]", "b 1..3: 2 1, s 1..7: 3 5"),
    "one_hot of a computed depth": case(
        "int i[s]",
        "d = Add i 2; ReduceMax d keepdims=0; z = OneHot i y [0.0,1]",
        "s 1..7: 3 5",
        outputs=("z",),
    ),
    "causal": on_shapes(
        "s = Gather shape 1; su = Unsqueeze s [0]; ss = Concat su su axis=0; "
        "m = ConstantOfShape ss value=[-9.0]; tri = Trilu m 1 upper=1; "
        "xt = Transpose x perm=[0,2,1]; sc = MatMul x xt; ma = Add sc tri; "
        "w = Softmax ma axis=-1; MatMul w x"
    ),
    "mask_mean": case(
        "x[b,s,6] int m[b,s]",
        "mu = Unsqueeze m [2]; mf = Cast mu to=1; xm = Mul x mf; su = ReduceSum xm [1] keepdims=0; "
        "cn = ReduceSum mf [1] keepdims=0; cl = Clip cn 1e-09; Div su cl",
        "b 1..3: 2 3, s 1..7: 3 7",
    ),
    "positions_cumsum": case(
        "int m[b,s]",
        "c = CumSum m 1; p = Sub c 1; q = Max p 0; Gather t q",
        "b 1..3: 2 1, s 1..4: 3 4",
        t=floats(9, 4),
    ),
    "windows": case(
        "x[b,h,6]",
        "sh = Shape x; h = Gather sh 1; b = Gather sh 0; hw = Div h 4; bu = Unsqueeze b [0]; "
        "hu = Unsqueeze hw [0]; to = Concat bu hu [4] [6] axis=0; r = Reshape x to; "
        "ReduceMean r [2] keepdims=0",
        "b 1..2: 1 2, h 4..12: 4 12",
    ),
    "reshape_move": on_shapes("Reshape x [0,6,-1]"),
    "batch that another input names": case(
        "x[b,s,6] z[c]",
        "count = Shape z end=1; to = Concat count [-1] axis=0; Reshape x to",
        "b 1..3: 1 2 3, s 2..7: 3 7 4, c 1..4: 1 2 3",
    ),
    "flatten_batch_rows": on_shapes(
        "f = Reshape x [-1,6]; g = MatMul f w; b = Gather shape 0; bu = Unsqueeze b [0]; "
        "to2 = Concat bu [-1] [5] axis=0; Reshape g to2",
        w=floats(6, 5),
    ),
    "where_mask": case(
        "x[b,s,6] int m[b,s]",
        "mb = Cast m to=9; mu = Unsqueeze mb [2]; Where mu x -1000000000.0",
        "b 1..3: 2, s 1..7: 3",
    ),
    "size_float_sqrt": on_shapes("s = Gather shape 1; f = Cast s to=1; q = Sqrt f; Div x q"),
    "div_floor_shape": on_shapes(f"{HALF}; Slice x [0] hu [1]"),
    "second_half": on_shapes(f"{HALF}; Slice x hu [4611686018427387904] [1]"),
    "expand_like": with_second("sx = Shape x; e = Expand z sx; Add x e", "b,1,6"),
    "resize_sizes_of": case(
        "x[b,3,h,w] z[b,3,H,W]",
        _resized(
            "sz = Shape z; to_hw = Slice sz [2] [4]",
            "mode=linear coordinate_transformation_mode=half_pixel",
        ),
        "b 1..2: 1 2, h 2..4: 2 4, w 2..5: 5 3, H 2..9: 9 8, W 2..8: 3 8",
    ),
    "resize_twice_size": case(
        "x[b,3,h,w]",
        _resized(
            "hw = Slice sx [2] [4]; to_hw = Mul hw [2]",
            "mode=nearest coordinate_transformation_mode=asymmetric nearest_mode=floor",
        ),
        "b 1..2: 1 2, h 2..4: 2 4, w 2..5: 5 3",
    ),
    "gemm": case("x[b,6]", "Gemm x w c", "b 1..3: 1 3", w=floats(6, 4), c=floats(4)),
    "gemm_transA": case("x[b,6] w[b,4]", "Gemm x w transA=1", "b 1..3: 1 3"),
    "matmul_vec": case("x[b,s] z[s]", "MatMul x z", "b 1..3: 2, s 1..5: 3"),
    "two_symbols_equal": case("x[b,s] z[b,t]", "Add x z", "b 1..3: 2, s 1..5: 3, t 1..4: 3"),
    "argmax_last": on_rows("ArgMax x axis=1 select_last_index=1"),
    "hardmax": on_rows("Hardmax x axis=1"),
    "split_heads3": on_shapes(
        "q = Reshape x [0,0,3,2]; a bb c = Split q axis=2 num_outputs=3; Sub a bb"
    ),
    "gather_dim": on_shapes("q = Reshape x [0,0,3,2]; t = Transpose q perm=[2,0,1,3]; Gather t 1"),
    "mod_sizes": on_shapes("s = Gather shape 1; m = Mod s 2; f = Cast m to=1; Add x f"),
    "pad_to_multiple": on_shapes(
        "s = Gather shape 1; m = Mod s 4; r = Sub 4 m; p = Mod r 4; pu = Unsqueeze p [0]; "
        "pads = Concat [0,0,0,0] pu [0] axis=0; Pad x pads"
    ),
}
