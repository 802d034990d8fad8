"""Which ONNX models are taken, what of them, and which are refused."""

import warnings

import jax
import numpy as np
import pytest
from onnx_nodes import GATES, arrays_of, helper, model_of, numpy_helper, onnx
from table import assert_close, jit

from seqmodels.cells import GRU, LSTM, RNN
from seqmodels.interop.onnx import from_onnx
from seqmodels.layers import Bidirectional, Recurrent


@pytest.mark.parametrize("op", GATES)
def test_names_of_activations_in_any_case_and_all_of_them_given(op):
    arrays = arrays_of(np.random.default_rng(0), op, 2)
    names = {"RNN": ["tanh"], "LSTM": ["SIGMOID", "tanh", "Tanh"], "GRU": ["sigmoid", "tanh"]}[op]
    given = model_of(op, arrays, direction="bidirectional", activations=names * 2)
    plain = model_of(op, arrays, direction="bidirectional")
    assert from_onnx(given).layer == from_onnx(plain).layer


def test_settings_and_weights_of_a_file(tmp_path):
    arrays = arrays_of(np.random.default_rng(0), "LSTM", more=("B", "P", "initial_c"))
    onnx.save(model_of("LSTM", arrays, clip=0.5, direction="reverse"), tmp_path / "model.onnx")
    for path in (tmp_path / "model.onnx", str(tmp_path / "model.onnx")):
        found = from_onnx(path)
        assert found.layer == Recurrent(
            LSTM(5, clip=0.5, peepholes=True), reverse=True, time_major=True
        )
    i, o, f, c = np.split(arrays["W"][0], 4)
    np.testing.assert_array_equal(found.params["input"]["kernel"], np.concatenate([i, f, c, o]).T)
    np.testing.assert_array_equal(found.carry.h, 0)  # as the node takes it
    np.testing.assert_array_equal(found.carry.c, arrays["initial_c"][0])
    assert (found.lengths, found.feeds) == (None, {"X": "X"})


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_weights_keep_their_dtype(dtype):
    arrays = arrays_of(np.random.default_rng(0), "GRU", more=("B",))
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    leaves = jax.tree.leaves(from_onnx(model_of("GRU", arrays)).params)
    assert {leaf.dtype for leaf in leaves} == {np.dtype(dtype)}


def test_the_node_is_chosen_by_its_name_or_an_output():
    rng = np.random.default_rng(0)
    model = model_of("GRU", arrays_of(rng, "GRU"))
    other = model_of("RNN", arrays_of(rng, "RNN"))
    for node in other.graph.node:
        node.name = ""
        node.input[:] = [f"other {name}" for name in node.input[:3]]
        node.output[:] = ["other Y"]
    for tensor in other.graph.initializer:
        tensor.name = f"other {tensor.name}"
    model.graph.node.extend(other.graph.node)
    model.graph.initializer.extend(other.graph.initializer)
    assert isinstance(from_onnx(model, "node").layer.cell, GRU)
    assert isinstance(from_onnx(model, "other Y").layer.cell, RNN)
    for name in (None, "W"):
        with pytest.raises(ValueError, match=f"{name}.*'GRU node', 'RNN other Y'"):
            from_onnx(model, name)


def changed(op="LSTM", more=(), fed=("X",), drop=None, shape=None, **attributes):
    """A model with something wrong."""
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    arrays = arrays_of(np.random.default_rng(0), op, directions, more=more)
    model = model_of(op, arrays, fed, **attributes)
    (node,) = model.graph.node
    for i, name in enumerate(node.input):
        if name == drop:
            node.input[i] = ""
    for tensor in model.graph.initializer:
        if shape and tensor.name == shape[0]:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(shape[1], np.float32), shape[0]))
    return model


def computed():
    """A model whose R another node computes."""
    model = changed("GRU", fed=("X", "R"))
    (node,) = model.graph.node
    node.input[2] = "R doubled"
    model.graph.node.append(helper.make_node("Add", ["R", "R"], ["R doubled"], name="sum"))
    return model


def quantised():
    """A model whose W is whole numbers."""
    model = changed("GRU")
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == "W")
    whole = numpy_helper.to_array(tensor).astype(np.int8)
    tensor.CopyFrom(numpy_helper.from_array(whole, "W"))
    return model


@pytest.mark.parametrize(
    "model, words",
    [
        (
            lambda: changed("GRU", activations=["HardSigmoid", "Tanh"]),
            r"GRU node: activations=\['HardSigmoid', 'Tanh'\] is not one of \[\['Sigmoid'",
        ),
        (lambda: changed(activations=["Sigmoid", "Tanh", "Relu"]), "'Relu'.* is not one of"),
        (lambda: changed("RNN", activations=["Softsign"]), r"Softsign.*\[\['Tanh'\], \['Relu'\]\]"),
        (
            lambda: changed("RNN", direction="bidirectional", activations=["Tanh", "Relu"]),
            r"\['Tanh', 'Relu'\] is not one of \[\['Tanh', 'Tanh'\], \['Relu', 'Relu'\]\]",
        ),
        (lambda: changed(direction="both"), "direction='both' is not one of"),
        (lambda: changed(layout=2), r"layout=2 is not one of \[0, 1\]"),
        (lambda: changed(clip=-1.0), "clip=-1.0 must be above 0"),
        (lambda: changed(output_sequence=1), "LSTM node: attribute output_sequence"),
        (lambda: changed(hidden_size=7), r"W has shape \(1, 20, 4\); expected \(1, 28, 'E'\)"),
        (lambda: changed(fed=("X", "W")), "W comes from outside"),
        (computed, "GRU node: R comes from Add sum; it must be an initializer or a Constant"),
        (quantised, r"params\['input'\]\['kernel'\] has dtype int8; expected a floating one"),
        (lambda: changed(drop="W"), "LSTM node: W is missing"),
        (lambda: changed(shape=("R", (1, 20, 4))), r"R has shape \(1, 20, 4\)"),
        (lambda: changed(more=("B",), shape=("B", (1, 20))), r"B has shape.*\(1, 40\)"),
        (lambda: changed(more=("P",), shape=("P", (2, 15))), r"P has shape.*\(1, 15\)"),
        (
            lambda: changed(more=("initial_h",), shape=("initial_h", (3, 1, 5))),
            r"initial_h has shape \(3, 1, 5\); expected \(1, 'B', 5\)",
        ),
        (
            lambda: changed(more=("initial_h", "initial_c"), fed=("X", "initial_c")),
            r"the model holds one of \['initial_h', 'initial_c'\] and computes the other",
        ),
        (
            lambda: helper.make_model(helper.make_graph([], "empty", [], [])),
            r"node=None is not one of the model's RNN, LSTM, GRU nodes, \[\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(model, words):
    with pytest.raises(ValueError, match=words):
        from_onnx(model())


def test_a_model_that_PyTorch_exported(tmp_path):
    """Two layers, both directions; the graph makes the initial states from the batch's size."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    module = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True).eval()
    x = torch.randn(5, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, of itself and of what it traces
        torch.onnx.export(module, (x,), tmp_path / "model.onnx", dynamo=False, opset_version=17)
    y = x.numpy()
    for name in ("/LSTM", "/LSTM_1"):
        found = from_onnx(tmp_path / "model.onnx", name)
        assert isinstance(found.layer, Bidirectional) and found.carry is None
        assert set(found.feeds) == {"X", "initial_h", "initial_c"}
        y, _ = jit(found.layer.apply)({"params": found.params}, y)
    assert_close(y, module(x)[0].detach().numpy(), 1e-5)
