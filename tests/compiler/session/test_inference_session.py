"""Sessions beside onnxruntime's: the same names, order, types, shapes, values, and refusals."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import tempfile
import time
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.parser import parse_model

from tests.compiler.frontend.onnx_models import model, node
from tests.end_to_end.tiny_model import tiny_model
from tests.onnxruntime_session import exact_session
from tests.processes import python
from tunefarm import compiler
from tunefarm.compiler import InferenceSession, OrtValue, RunOptions, SessionOptions
from tunefarm.compiler.errors import (
    ArtefactError,
    ImportModelError,
    InputError,
    ModelError,
    SettingsError,
    TunefarmError,
    UntunedWarning,
)

ML = "ai.onnx.ml"
CPU = ["CPUExecutionProvider"]
X, Y = (np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32) for seed in (1, 2))

FEED = {"x": X, "y": Y}


model_of = partial(model, opset=21, domains={ML: 3})
FLOATS = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=[2, 3])


def arithmetic() -> onnx.ModelProto:
    """Inputs and outputs whose order is neither that of names nor that of nodes."""
    tensor, node = helper.make_tensor_value_info, helper.make_node
    inputs = [tensor(name, TensorProto.FLOAT, ["batch", 3]) for name in ("y", "x")]
    return model_of(
        [
            node("Add", ["y", "x"], ["sum"]),
            node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
            node("Greater", ["y", "x"], ["larger"]),
            node("Shape", ["x"], ["extents"]),
        ],
        inputs,
        [
            tensor("larger", TensorProto.BOOL, ["batch", 3]),
            tensor("sum", TensorProto.FLOAT, ["batch", 3]),
            tensor("extents", TensorProto.INT64, [2]),
            tensor("half", TensorProto.FLOAT16, ["batch", 3]),
        ],
    )


def lists() -> onnx.ModelProto:
    """A list before a tensor, and rows as dictionaries behind it."""
    tensor, node = helper.make_tensor_value_info, helper.make_node
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 1])
    single = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, single))
    return model_of(
        [
            node("SplitToSequence", ["x"], ["parts"], axis=1),
            node("Neg", ["x"], ["negative"]),
            node("ZipMap", ["x"], ["maps"], domain=ML, classlabels_strings=["a", "b", "c"]),
            node(
                "LabelEncoder",
                ["words"],
                ["numbers"],
                domain=ML,
                keys_strings=["cat", "dog"],
                values_int64s=[3, 5],
            ),
        ],
        [tensor("x", TensorProto.FLOAT, [2, 3]), tensor("words", TensorProto.STRING, [2])],
        [
            helper.make_value_info("parts", helper.make_sequence_type_proto(value)),
            helper.make_value_info("maps", maps),
            tensor("negative", TensorProto.FLOAT, [2, 3]),
            tensor("numbers", TensorProto.INT64, [2]),
        ],
    )


class Pair:
    """One model in a session of ours and in one of onnxruntime."""

    def __init__(self, model: onnx.ModelProto, path: Path, **options: Any) -> None:
        onnx.save(model, path.with_suffix(".onnx"))
        compiler.build(str(path.with_suffix(".onnx")), **options).save(path)
        self.ours = InferenceSession(path)
        self.other = exact_session(str(path.with_suffix(".onnx")))

    def check_ports(self) -> None:
        for method in ("get_inputs", "get_outputs", "get_overridable_initializers"):
            ours, theirs = (getattr(session, method)() for session in (self.ours, self.other))
            assert [(a.name, a.type, a.shape) for a in ours] == [
                (a.name, a.type, a.shape) for a in theirs
            ]
            assert [str(a) for a in ours] == [str(a).strip() for a in theirs]

    def check_run(self, names: list[str] | None, feed: Mapping[str, Any]) -> list[Any]:
        ours, theirs = (session.run(names, feed) for session in (self.ours, self.other))
        assert [type(value) for value in ours] == [type(value) for value in theirs]
        for value, expected in zip(ours, theirs, strict=True):
            _assert_same(value, expected)
        return ours

    def check_refused(self, names: Any, feed: Any) -> str:
        with pytest.raises(Exception):  # noqa: B017 - of a dozen classes
            self.other.run(names, feed)
        with pytest.raises(InputError) as refused:
            self.ours.run(names, feed)
        return refused.value.message


def _assert_same(value: Any, expected: Any) -> None:
    if isinstance(value, np.ndarray):
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    elif isinstance(value, dict):
        assert value == pytest.approx(expected)
    else:
        for item, other in zip(value, expected, strict=True):
            _assert_same(item, other)


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("sized") / "sized.tuned"
    return Pair(arithmetic(), path, shapes={"batch": ("1..4",)})


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(lists(), tmp_path_factory.mktemp("fixed") / "lists.tuned")


def test_ports_are_those_of_onnxruntime(sized: Pair, fixed: Pair) -> None:
    sized.check_ports()
    fixed.check_ports()


@pytest.mark.parametrize(
    "names", [None, [], ["sum"], ["half", "larger"], ["sum", "sum"], ("extents",)]
)
def test_outputs_come_in_the_order_that_is_asked_for(sized: Pair, names: list[str] | None) -> None:
    sized.check_run(names, {"x": X, "y": Y})
    sized.check_run(names, {"y": Y[:1], "x": X[:1]})


def test_lists_of_numbers_and_foreign_orders_are_read(sized: Pair) -> None:
    sized.check_run(None, {"x": X.tolist(), "y": np.asfortranarray(Y)})


def test_lists_dictionaries_and_texts_come_as_they_do_there(fixed: Pair) -> None:
    words = np.array(["dog", "cat"], object)
    parts, _, _, numbers = fixed.check_run(None, {"x": X, "words": words})
    assert [part.shape for part in parts] == [(2, 1)] * 3 and numbers.tolist() == [5, 3]
    fixed.check_run(["negative", "maps"], {"x": X, "words": words})


@pytest.mark.parametrize(
    ("names", "feed", "message"),
    [
        (None, {"x": X}, "input 'y' is missing; the model's inputs are 'y', 'x'"),
        (None, {"x": X, "y": Y, "u": X}, "the model has no input 'u'"),
        (None, {"x": X, "y": Y.astype(np.float64)}, "input 'y' has elements of type f64"),
        (None, {"x": X, "y": Y[:, :2]}, "input 'y' has the shape [2, 2]"),
        (None, {"x": [["a"]], "y": Y}, "input 'x' cannot be read as f32"),
        (None, [X, Y], "inputs are given by name, as a dict, not as list"),
        (["summ"], {"x": X, "y": Y}, "the model has no output 'summ'"),
        ("sum", {"x": X, "y": Y}, "outputs are a list of names, or None"),
    ],
)
def test_what_onnxruntime_refuses_is_refused(
    sized: Pair, names: Any, feed: Any, message: str
) -> None:
    assert message in sized.check_refused(names, feed)


def test_an_onnx_file_is_built_untuned_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_model("batch"), path)
    with pytest.warns(UntunedWarning, match=r"tiny.onnx is built untuned") as caught:
        session = InferenceSession(path, shapes={"batch": ("1..2",)})
    assert caught[0].filename == __file__
    assert session.get_inputs()[0].shape == ["batch", 3, 12, 12]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.executable.save(path)  # what it is says the content, not the name
        again = InferenceSession(str(path))
        same = InferenceSession(again.executable)
    assert again.get_modelmeta().graph_name == "tiny" and same.executable is again.executable
    pixels = np.ones((2, 3, 12, 12), np.float32)
    (first,), (second,) = (each.run(None, {"x": pixels}) for each in (session, again))
    np.testing.assert_array_equal(first, second)


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match=r"no\.onnx"):
        InferenceSession(tmp_path / "no.onnx")
    with pytest.raises(ArtefactError, match=r"no\.tuned"):
        InferenceSession(str(tmp_path / "no.tuned"))
    with pytest.raises((ArtefactError, ImportModelError)):
        InferenceSession(b"no model at all")


def test_options_of_either_kind_say_how_many_threads(sized: Pair, tmp_path: Path) -> None:
    sized.ours.executable.save(tmp_path / "m.tuned")
    theirs = onnxruntime.SessionOptions()
    theirs.intra_op_num_threads = 2
    for options in (SessionOptions(intra_op_num_threads=2), theirs):
        session = InferenceSession(tmp_path / "m.tuned", options)
        assert session.executable.threads == 2 and session.get_session_options() is options
    for unsaid in (onnxruntime.SessionOptions(), SessionOptions(intra_op_num_threads=-1)):
        assert InferenceSession(tmp_path / "m.tuned", unsaid).executable.threads == 1


def test_options_that_cannot_be_are_errors(sized: Pair) -> None:
    executable = sized.ours.executable
    with pytest.raises(SettingsError, match="'4': it must be an integer"):
        InferenceSession(executable, SessionOptions(intra_op_num_threads="4"))
    with pytest.raises(SettingsError, match=r"type dict.*give a tunefarm\.SessionOptions"):
        InferenceSession(executable, {"intra_op_num_threads": 4})
    with pytest.raises(SettingsError, match=r"LoRA.*read_adapter"):
        RunOptions().add_active_adapter("adapter")
    options = SessionOptions()
    with pytest.raises(SettingsError, match="do not make the session"):
        options.set_load_cancellation_flag(True)
    with pytest.raises(SettingsError, match="register_function"):
        options.register_custom_ops_library("ops.so")
    with pytest.raises(TypeError, match="no thread_count"):
        SessionOptions(thread_count=3)
    for own in (options, RunOptions()):  # a misspelt option is an error, as with onnxruntime
        with pytest.raises(AttributeError):
            own.intra_op_num_thread = 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "options",
    [
        {"inter_op_num_threads": 2},
        {"graph_optimization_level": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL},
    ],
)
def test_options_without_meaning_are_logged(
    sized: Pair, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "tunefarm.session")
    own = SessionOptions(**options)
    own.add_provider("CUDAExecutionProvider", {})
    own.add_provider_for_devices([], {})
    own.set_provider_selection_policy(None)
    own.set_provider_selection_policy_delegate(None)
    own.set_load_cancellation_flag(False)
    assert not own.has_providers()
    own.add_session_config_entry("session.x", "1")
    assert own.get_session_config_entry("session.x") == "1"
    with pytest.raises(SettingsError, match=r"session\.y"):
        own.get_session_config_entry("session.y")
    session = InferenceSession(sized.ours.executable, own, disabled_optimizers=["all"])
    assert len(session.run(None, {"x": X, "y": Y})) == 4
    assert "session.x=1 means nothing here" in caplog.text
    assert "disabled_optimizers" in caplog.text


def test_threads_and_shapes_come_too_late_for_an_executable(sized: Pair) -> None:
    with pytest.raises(SettingsError, match="loaded for 1 thread"):
        InferenceSession(sized.ours.executable, SessionOptions(intra_op_num_threads=2))
    with pytest.raises(SettingsError, match="shapes and threads"):
        InferenceSession(sized.ours.executable, shapes={"batch": (1,)})


def test_the_cpu_is_the_one_provider(sized: Pair, caplog: pytest.LogCaptureFixture) -> None:
    executable = sized.ours.executable
    cuda, cpu = "CUDAExecutionProvider", "CPUExecutionProvider"
    caplog.set_level("DEBUG", "tunefarm.session")
    session = InferenceSession(executable, providers=[(cuda, {"device_id": 0}), cpu])
    assert session.get_providers() == compiler.get_available_providers() == [cpu]
    assert session.get_provider_options() == {cpu: {}}
    assert f"there is no provider {cuda}" in caplog.text and "device_id" in caplog.text
    asked: list[tuple[list[Any], list[dict[str, Any]] | None]] = [
        ([cuda], None),
        ([(cpu, {"arena_extend_strategy": "kSameAsRequested"})], None),
        ([cuda, cpu], [{"a": 1}, {"b": 1}]),
    ]
    for providers, options in asked:
        assert len(InferenceSession(executable, None, providers, options).run(None, FEED)) == 4
    assert "arena_extend_strategy of CPUExecutionProvider" in caplog.text
    session.set_providers([cuda])
    assert session.get_providers() == [cpu]


def test_what_sessions_have_and_these_have_not_is_named(sized: Pair) -> None:
    """All that onnxruntime's session has is there, or its absence is explained."""
    public = [name for name in dir(sized.other) if not name.startswith("_")]
    for name in public:
        if not hasattr(sized.ours, name):
            with pytest.raises(AttributeError, match=f"InferenceSession has no {name}"):
                getattr(sized.ours, name)
    own: Any = sized.ours
    assert (own._providers, own._inputs_meta) == (own.get_providers(), own.get_inputs())
    assert len(own._sess.run(None, FEED, None)) == 4
    with pytest.raises(AttributeError, match=r"no run_with_ortvaluevector: run takes arrays"):
        sized.ours.run_with_ortvaluevector()  # type: ignore[attr-defined]
    options = onnxruntime.RunOptions()
    assert len(sized.ours.run(None, {"x": X, "y": Y}, options)) == 4
    options.terminate = True
    with pytest.raises(SettingsError, match="terminate"):
        sized.ours.run(None, {"x": X, "y": Y}, options)
    told = {name for name in dir(sized.other.get_modelmeta()) if not name.startswith("_")}
    assert told <= set(dir(sized.ours.get_modelmeta()))


def test_sizes_of_one_name_must_be_equal(sized: Pair) -> None:
    """Where onnxruntime spreads one sentence over two if the operators happen to allow it."""
    with pytest.raises(InputError, match="batch"):
        sized.ours.run(None, {"x": X, "y": Y[:1]})


def test_metadata_is_that_of_the_file(tmp_path: Path) -> None:
    model = arithmetic()
    model.producer_name, model.domain, model.model_version = "maker", "org.maker", 7
    model.doc_string, model.graph.doc_string = "what it is", "the graph"
    helper.set_model_props(model, {"character": "a\nb\nç", "names": "{0: 'cat'}"})
    onnx.save(model, tmp_path / "m.onnx")
    theirs = exact_session(tmp_path / "m.onnx").get_modelmeta()
    compiler.build(tmp_path / "m.onnx", shapes={"batch": (2,)}).save(tmp_path / "m.tuned")
    with pytest.warns(UntunedWarning):
        unbuilt = InferenceSession(tmp_path / "m.onnx")
    for session in (InferenceSession(tmp_path / "m.tuned"), unbuilt):
        ours = session.get_modelmeta()
        own = {k: v for k, v in ours.custom_metadata_map.items() if not k.startswith("tunefarm.")}
        assert own == theirs.custom_metadata_map
        for name in ("graph_name", "producer_name", "domain", "description", "version"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.graph_description == theirs.graph_description


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
def test_models_and_artefacts_come_as_bytes(tmp_path: Path) -> None:
    sized = arithmetic().SerializeToString()
    compiler.build(_saved(tmp_path), shapes={"batch": (2,)}).save(tmp_path / "m.tuned")
    given: Any
    for given in (sized, bytearray(sized), (tmp_path / "m.tuned").read_bytes()):
        results = InferenceSession(given).run(["sum"], FEED)
        np.testing.assert_array_equal(results[0], X + Y)


@pytest.mark.filterwarnings(
    "ignore::tunefarm.compiler.errors.UntunedWarning", "error::ResourceWarning"
)
def test_the_file_of_a_model_of_bytes_goes_with_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session = InferenceSession(arithmetic().SerializeToString())
    assert len(list(tmp_path.iterdir())) == 1
    del session
    gc.collect()
    assert not list(tmp_path.iterdir())


def _saved(folder: Path) -> Path:
    onnx.save(arithmetic(), folder / "m.onnx")
    return folder / "m.onnx"


def test_a_model_with_open_sizes_is_built_for_those_that_come(tmp_path: Path) -> None:
    path = _saved(tmp_path)
    with pytest.warns(
        UntunedWarning, match=r"has dynamic dimensions.*tune build --model"
    ) as caught:
        session = InferenceSession(path)
    assert caught[0].filename == __file__
    theirs = exact_session(path)
    for method in ("get_inputs", "get_outputs"):
        declared = [(p.name, p.type, p.shape) for p in getattr(session, method)()]
        assert declared == [(p.name, p.type, p.shape) for p in getattr(theirs, method)()]
    with pytest.raises(SettingsError, match="before the first run"):
        _ = session.executable
    assert session.builds is not None
    for rows in (1, 2, 3, 2, 50, 1, 200, 7):
        feed = {name: np.full((rows, 3), rows + n, np.float32) for n, name in enumerate("xy")}
        ours, expected = session.run(None, feed), theirs.run(None, feed)
        for value, other in zip(ours, expected, strict=True):
            np.testing.assert_array_equal(value, other)
        assert session.builds.wait(60)
    assert not session.executable.signature.is_fixed  # a range, of which there was a third size
    served = session.executable
    session.run(None, {"x": np.zeros((9, 3)).tolist(), "y": np.zeros((9, 3), np.float32)})
    assert session.executable is served


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"x": X}, "input 'y' is missing; the model's inputs are 'y', 'x'"),
        ({**FEED, "u": X}, "the model has no input 'u'"),
        ({"x": X, "y": Y[:, :2]}, "input 'y' has the shape [2, 2], the model declares [batch, 3]"),
        ({"x": X, "y": Y[0]}, "input 'y' has the shape [3]"),
        ({"x": X.astype(np.float64), "y": Y}, "input 'x' has elements of type f64"),
        ([X, Y], "inputs are given by name, as a dict, not as list"),
    ],
)
@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
def test_errors_of_a_run_name_the_input_and_what_was_expected(
    tmp_path: Path, feed: Any, message: str
) -> None:
    session = InferenceSession(_saved(tmp_path))
    with pytest.raises(InputError) as refused:
        session.run(None, feed)
    assert message in refused.value.message


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
def test_sizes_that_the_model_cannot_have_are_errors_of_the_run() -> None:
    value = helper.make_tensor_value_info
    model = model_of(
        [node("MatMul", "x y", "z")],
        [value("x", TensorProto.FLOAT, ["n", "k"]), value("y", TensorProto.FLOAT, ["m", 3])],
        [value("z", TensorProto.FLOAT, ["n", 3])],
    )
    session = InferenceSession(model.SerializeToString())
    with pytest.raises(InputError, match=r"cannot be built for inputs of x \[2, 3\], y \[2, 3\]"):
        session.run(None, FEED)
    (found,) = session.run(None, {"x": X[:, :2], "y": Y})
    np.testing.assert_allclose(found, X[:, :2] @ Y, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
def test_options_give_symbols_their_sizes(tmp_path: Path) -> None:
    options = SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    options.add_free_dimension_override_by_name("of another model", 3)
    session = InferenceSession(_saved(tmp_path), options)
    assert session.get_inputs()[0].shape == [2, 3]
    assert session.executable.signature.is_fixed


def test_inputs_and_outputs_are_bound(sized: Pair) -> None:
    session, theirs = sized.ours, sized.other
    (expected,) = theirs.run(["sum"], FEED)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_input("y", OrtValue.ortvalue_from_numpy(Y))
    binding.bind_output("sum")
    session.run_with_iobinding(binding, RunOptions())
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), expected)
    inside: Any = binding._iobinding  # which programs ask, as there
    np.testing.assert_array_equal(inside.get_outputs_as_ortvaluevector()[0].numpy(), expected)
    for engine, other_binding in ((session, binding), (theirs, theirs.io_binding())):
        with pytest.raises(RuntimeError):
            other_binding.bind_cpu_input("nowhere", X)
        other_binding.bind_cpu_input("x", X.astype(np.float64))
        with pytest.raises(RuntimeError):
            engine.run_with_iobinding(other_binding)
    with pytest.raises(InputError, match=r"no output 'sums'.*did you mean 'sum'"):
        binding.bind_output("sums")

    place = OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32, "cpu", 0)
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output("sum", place)
    other = np.zeros((2, 3), np.float16)
    binding.bind_output("half", "cpu", 0, np.float16, [2, 3], other.ctypes.data)
    binding.clear_binding_inputs()
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    binding.bind_input("y", "cpu", 0, 1, Y.shape, Y.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(place.numpy(), expected)
    np.testing.assert_array_equal(other, X.astype(np.float16))


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
def test_outputs_whose_shape_a_run_computes_are_bound() -> None:
    made = parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x) => (int64[1, found] y, float[n] z) { y = NonZero (x) z = Neg (x) }"""
    )
    sessions: Any = (InferenceSession(made.SerializeToString()), exact_session(made))
    x = np.array([0, 3, 0, 5], np.float32)
    for session, maker in zip(sessions, (OrtValue, onnxruntime.OrtValue), strict=True):
        y, z = np.zeros((1, 2), np.int64), np.zeros(4, np.float32)
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_ortvalue_output("y", maker.ortvalue_from_numpy(y))
        binding.bind_output("z", "cpu", 0, np.float32, [4], z.ctypes.data)
        session.run_with_iobinding(binding)
        assert binding.get_outputs()[0].numpy().tolist() == [[1, 3]]
        assert z.tolist() == [0, -3, 0, -5]
        binding.bind_ortvalue_output("y", maker.ortvalue_from_numpy(np.zeros((1, 3), np.int64)))
        with pytest.raises(RuntimeError):
            session.run_with_iobinding(binding)


def test_ort_values_tell_what_those_of_onnxruntime_tell(sized: Pair) -> None:
    ours = OrtValue.ortvalue_from_numpy(X.copy())
    theirs = onnxruntime.OrtValue.ortvalue_from_numpy(X.copy())
    for name in (
        "shape",
        "data_type",
        "element_type",
        "device_name",
        "has_value",
        "is_tensor",
        "is_sparse_tensor",
        "is_tensor_sequence",
        "tensor_size_in_bytes",
    ):
        assert getattr(ours, name)() == getattr(theirs, name)()
    ours.update_inplace(Y)
    np.testing.assert_array_equal(np.asarray(ours), Y)
    np.testing.assert_array_equal(np.from_dlpack(cast(Any, ours)), Y)
    for wrong in (Y[:1], Y.astype(np.float64)):
        with pytest.raises(InputError, match=r"float32\[2, 3\], and cannot become float"):
            ours.update_inplace(wrong)
    with pytest.raises(InputError, match="not of a list"):
        OrtValue.ortvalue_from_numpy([1.0])  # type: ignore[arg-type]
    shared = Y.copy()
    assert OrtValue.from_dlpack(shared).data_ptr() == shared.ctypes.data
    assert ours.data_ptr() == ours.numpy().ctypes.data
    values = {"x": theirs, "y": ours}
    (found,) = sized.ours.run_with_ort_values(["sum"], values)
    np.testing.assert_array_equal(found.numpy(), X + Y)
    with pytest.warns(UntunedWarning, match=r"^the model has dynamic.*--model model\.onnx"):
        by_size = InferenceSession(arithmetic().SerializeToString())
    for session in (sized.ours, by_size):
        np.testing.assert_array_equal(session.run(["sum"], values)[0], X + Y)


@pytest.mark.parametrize("number", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN])
def test_ort_values_have_types_that_numpy_has_not(number: int) -> None:
    bits = np.zeros(4, np.uint16 if number == TensorProto.BFLOAT16 else np.uint8)
    makers: Any = (OrtValue, onnxruntime.OrtValue)
    for make in (
        lambda maker: maker.ortvalue_from_shape_and_type([4], number),
        lambda maker: maker.ortvalue_from_numpy_with_onnx_type(bits, number),
    ):
        ours, theirs = map(make, makers)
        for name in ("shape", "data_type", "element_type", "tensor_size_in_bytes"):
            assert getattr(ours, name)() == getattr(theirs, name)()


def test_errors_name_types_that_numpy_has_not_by_their_package() -> None:
    made = model_of(
        [node("Cast", "x", to=TensorProto.FLOAT)],
        [FLOATS("x", elem_type=TensorProto.BFLOAT16)],
        [FLOATS("y")],
    )
    with pytest.warns(UntunedWarning):
        session = InferenceSession(made.SerializeToString())
    with pytest.raises(InputError, match=r"astype\(ml_dtypes\.bfloat16\)"):
        session.run(None, {"x": X})


def test_sessions_are_neither_pickled_nor_copied(sized: Pair) -> None:
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="make one in each process"):
            act(sized.ours)


class OfPath(InferenceSession):
    """A session that is pickled by its path, as insightface has it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __getstate__(self) -> Any:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]


def test_programs_pickle_sessions_by_their_path(sized: Pair, tmp_path: Path) -> None:
    sized.ours.executable.save(tmp_path / "m.tuned")
    again = pickle.loads(pickle.dumps(OfPath(str(tmp_path / "m.tuned"))))
    np.testing.assert_array_equal(again.run(["sum"], FEED)[0], X + Y)


def test_runs_are_asynchronous(sized: Pair) -> None:
    told: Queue[tuple[list[Any], Any, str]] = Queue()
    sized.ours.run_async(["sum"], FEED, lambda *results: told.put(results), "mine")
    results, user, error = told.get(timeout=60)
    assert (user, error) == ("mine", "")
    np.testing.assert_array_equal(results[0], X + Y)
    sized.ours.run_async(["sum"], {"x": X}, lambda *results: told.put(results), None)
    results, _, error = told.get(timeout=60)
    assert results == [] and "'y' is missing" in error


def test_the_names_that_programs_import_are_there() -> None:
    import tunefarm

    for name in tunefarm.compiler.session.__all__:
        assert hasattr(onnxruntime, name) and hasattr(tunefarm, name)
    assert tunefarm.get_device() == "CPU"
    assert tunefarm.get_all_providers() == tunefarm.get_available_providers() == CPU
    for name in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"):
        theirs = getattr(onnxruntime, name).__members__
        ours = getattr(tunefarm, name).__members__
        assert set(theirs) >= set(ours)
        for key, value in ours.items():
            assert (int(value), str(value)) == (int(theirs[key].value), str(theirs[key]))
    assert str(tunefarm.compiler.VERSION) in tunefarm.get_build_info()
    tunefarm.disable_telemetry_events()
    tunefarm.enable_telemetry_events()
    tunefarm.preload_dlls()
    tunefarm.set_seed(7)
    tunefarm.set_default_logger_severity(3)
    tunefarm.set_default_logger_severity(2)
    tunefarm.set_default_logger_verbosity(0)
    with pytest.raises(SettingsError, match="severity 9"):  # a RuntimeError, as there
        tunefarm.set_default_logger_severity(9)


def test_programs_catch_the_exceptions_of_capi(tmp_path: Path, sized: Pair) -> None:
    """By attribute, and by import where tunefarm stands for onnxruntime in `sys.modules`."""
    import tunefarm.capi

    theirs: Any = onnxruntime.capi.onnxruntime_pybind11_state
    state: Any = tunefarm.capi.onnxruntime_pybind11_state
    for name in tunefarm.capi.__all__:
        assert issubclass(getattr(theirs, name), Exception)
        assert issubclass(getattr(state, name), TunefarmError)
    (tmp_path / "damaged.onnx").write_bytes(b"\x08\x08\x12")
    sized.ours.executable.save(tmp_path / "whole.tuned")
    damaged = (tmp_path / "whole.tuned").read_bytes()[:-9]
    (tmp_path / "damaged.tuned").write_bytes(damaged)
    (tmp_path / "unknown.onnx").write_bytes(
        model_of([node("Nowhere", "x")], [FLOATS("x")], [FLOATS("y")]).SerializeToString()
    )
    engines: Any = ((onnxruntime, theirs), (tunefarm, state))
    for name, expected in (
        ("absent.onnx", "NoSuchFile"),
        ("damaged.onnx", "InvalidProtobuf"),
        ("damaged.tuned", "InvalidProtobuf"),
        ("unknown.onnx", "InvalidGraph"),
    ):
        for engine, found in engines:
            with pytest.raises(getattr(found, expected)):
                engine.InferenceSession(str(tmp_path / name), providers=CPU)
    sessions: Any = ((sized.other, theirs), (sized.ours, state))
    for session, found in sessions:
        with pytest.raises(found.InvalidArgument):
            session.run(None, {"x": X[:, :2], "y": Y})
        with pytest.raises(ValueError, match="missing"):
            session.run(None, {"x": X})
    program = (
        "import sys, tunefarm; sys.modules['onnxruntime'] = tunefarm\n"
        "from onnxruntime.capi import _pybind_state as state\n"
        "from onnxruntime.capi._pybind_state import set_default_logger_severity\n"
        "from onnxruntime.capi.onnxruntime_pybind11_state import Fail\n"
        "print(state.get_available_providers(), Fail is tunefarm.capi.Fail)\n"
    )
    assert python("-c", program, check=True).stdout.split() == [f"{CPU}", "True"]
    with pytest.raises(AttributeError, match="no attribute 'OrtValueVector'"):
        _ = tunefarm.capi.OrtValueVector


@pytest.mark.parametrize("is_installed", [True, False])
def test_onnxruntime_is_replaced_for_all_later_imports(tmp_path: Path, is_installed: bool) -> None:
    """Its own modules have our sessions and errors, and all else that is theirs; without it a
    module stands for it, of a version that programs accept."""
    onnx.save(arithmetic(), tmp_path / "sum.onnx")
    program = f"""
import sys, tunefarm
from importlib.util import find_spec
if not {is_installed}:
    tunefarm.find_spec = lambda name: None if name == "onnxruntime" else find_spec(name)
tunefarm.replace_onnxruntime()
import numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as again
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
assert InferenceSession is again is tunefarm.InferenceSession, InferenceSession
assert SessionOptions is tunefarm.SessionOptions
assert find_spec("onnxruntime") is not None
session = InferenceSession({str(tmp_path / "sum.onnx")!r}, SessionOptions())
try:
    session.run(None, {{"x": np.zeros((2, 4), "f4"), "y": np.zeros((2, 3), "f4")}})
except InvalidArgument as error:
    print(tuple(int(part) for part in ort.__version__.split(".")[:2]) >= (1, 31))
    print("theirs" if find_spec("onnxruntime.quantization") else "ours")
"""
    found = python("-W", "ignore", "-c", program, check=True).stdout.split()
    assert found == ["True", "theirs" if is_installed else "ours"]


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
def test_an_optimized_model_is_the_model_and_a_profile_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weight = np.ones((3, 400), np.float32)
    output = FLOATS("y", shape=[2, 400])
    made = model_of([node("MatMul", "x w")], [FLOATS("x")], [output], {"w": weight})
    onnx.save(made, "m.onnx", save_as_external_data=True, location="m.data")
    options = SessionOptions(optimized_model_filepath="copies/m.onnx")
    with pytest.raises(SettingsError, match=r"cannot write copies/m\.onnx: No such file"):
        InferenceSession("m.onnx", options)
    (tmp_path / "copies").mkdir()
    session = InferenceSession("m.onnx", options)
    (expected,) = exact_session("copies/m.onnx").run(None, {"x": X})
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-6)

    assert session.end_profiling() == ""  # nobody asked for it
    assert session.get_profiling_start_time_ns() == 0
    for given in ("m.onnx", arithmetic().SerializeToString()):
        profiled = InferenceSession(given, SessionOptions(enable_profiling=True))
        assert profiled.end_profiling() == ""  # nothing was run
        assert 0 < profiled.get_profiling_start_time_ns() <= time.perf_counter_ns()
        profiled.run(None, FEED if isinstance(given, bytes) else {"x": X.tolist()})
        events = json.loads(Path(profiled.end_profiling()).read_text())
        whole, *steps = events
        assert whole["name"] == "model_run" and steps
        assert whole["dur"] == pytest.approx(sum(step["dur"] for step in steps)) != 0


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
@pytest.mark.parametrize("given", [b"", b"no model", b"\x08\x08\x12"])
def test_errors_of_bytes_name_no_temporary_file(given: bytes) -> None:
    with pytest.raises(ModelError, match=r"^the model ") as refused:
        InferenceSession(given)
    assert tempfile.gettempdir() not in str(refused.value)


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
def test_sizes_that_a_range_does_not_serve_are_built_for_themselves() -> None:
    """With one row a branch squeezes it away: another rank than with more."""
    text = """<ir_version: 8, opset_import: ["" : 13]>
    g (float[batch, 4] x) => (float[p] y)
    <int64[1] axis = {0}, int64 first = {0}, int64 one = {1}> {
        shape = Shape (x)
        size = Gather (shape, first)
        is_one = Equal (size, one)
        s = If (is_one) <then_branch = t () => (float[p] a) { a = Squeeze (x, axis) },
                         else_branch = e () => (float[p] b) { b = Identity (x) }>
        y = Relu (s)
    }"""
    model = parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session, theirs = InferenceSession(model.SerializeToString()), exact_session(model)
    assert session.builds is not None
    for rows in (2, 3, 4, 1, 5, 1, 3):
        x = np.full((rows, 4), rows, np.float32)
        (found,), (expected,) = session.run(None, {"x": x}), theirs.run(None, {"x": x})
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
        assert session.builds.wait(60)


@pytest.mark.filterwarnings("ignore::tunefarm.compiler.errors.UntunedWarning")
@pytest.mark.parametrize("sounds", ["n", "2"])
def test_sizes_that_a_run_computes_get_bounds(sounds: str, tmp_path: Path) -> None:
    """As in speech synthesis, where the durations of sounds are computed."""
    path = tmp_path / "durations.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[SOUNDS] durations) => (float[frames] y)
    <int64[1] row = {-1}, float[1] half = {0.5}> {
      total = ReduceSum <keepdims = 0> (durations)
      count = Cast <to = 7> (total)
      length = Reshape (count, row)
      y = Expand (half, length)
    }"""
    onnx.save(parse_model(text.replace("SOUNDS", sounds)), path)
    session = InferenceSession(path)
    theirs = onnxruntime.InferenceSession(path, providers=CPU)
    for durations in ((2.0, 3.0), (1.0, 40.0), *(((1.0, 4.0, 2.0),) if sounds == "n" else ())):
        feed = {"durations": np.array(durations, np.float32)}
        (expected,) = theirs.run(None, feed)
        np.testing.assert_array_equal(session.run(None, feed)[0], expected)
    with pytest.raises(InputError, match=r"\(frames\) must be 1 to 512"):
        session.run(None, {"durations": np.array([600, 1], np.float32)})


def test_inputs_without_a_declared_rank_take_any() -> None:
    model = parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x, float[3] w) => (float[n] y) { y = Mul (x, w) }"""
    )
    for info in (model.graph.input[0], model.graph.output[0]):
        info.type.tensor_type.ClearField("shape")
    session, theirs = InferenceSession(model.SerializeToString()), exact_session(model)
    assert session.get_inputs()[0].shape == theirs.get_inputs()[0].shape == []
    w = np.array([1, 2, 3], np.float32)
    for shape in ((3,), (2, 3), (4, 2, 3), (1, 3)):
        feed = {"x": np.ones(shape, np.float32), "w": w}
        np.testing.assert_array_equal(session.run(None, feed)[0], theirs.run(None, feed)[0])
