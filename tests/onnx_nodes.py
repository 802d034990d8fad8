"""ONNX models of one node, and what onnxruntime makes of them; skips where either is absent."""

import jax.numpy as jnp
import numpy as np
import pytest

from seqmodels.cells import GRUCarry, LSTMCarry, RNNCarry

MISSING = "ONNX or onnxruntime is not installed: pip install '.[interop]'"
onnx = pytest.importorskip("onnx", reason=MISSING)
onnxruntime = pytest.importorskip("onnxruntime", reason=MISSING)
from onnx import TensorProto, helper, numpy_helper, reference  # noqa: E402, F401

onnxruntime.set_default_logger_severity(4)  # what it refuses is an exception already
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
CARRIES = {"RNN": RNNCarry, "LSTM": LSTMCarry, "GRU": GRUCarry}
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUTS = ("Y", "Y_h", "Y_c")


def outputs_of(op):
    return OUTPUTS if op == "LSTM" else OUTPUTS[:2]


def model_of(op, arrays, fed=("X",), opset=14, constants=False, **attributes):
    """A model of one node; of its inputs `fed` come at run time, the others it holds.

    constants  they are Constant nodes, not initializers
    """
    names = [name if name in arrays else "" for name in INPUTS[: 8 if op == "LSTM" else 6]]
    attributes.setdefault("hidden_size", arrays["R"].shape[-1])
    nodes = [helper.make_node(op, names, outputs_of(op), name="node", **attributes)]
    held = [numpy_helper.from_array(a, name) for name, a in arrays.items() if name not in fed]
    if constants:
        nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in held] + nodes
        held = []
    kinds = {name: helper.np_dtype_to_tensor_dtype(arrays[name].dtype) for name in fed}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, kinds[n], arrays[n].shape) for n in fed],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs_of(op)],
        held,
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def session_of(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def run_onnx(op, arrays, fed=("X",), **attributes):
    """(Y, Y_h, ...) by onnxruntime."""
    model = model_of(op, arrays, fed, **attributes)
    return session_of(model).run(None, {name: arrays[name] for name in fed})


def arrays_of(rng, op, directions=1, steps=6, batch=3, inputs=4, width=5, more=()):
    """Random inputs of a node: X, W, R and those named in `more`."""
    rows = GATES[op] * width
    shapes = {
        "X": (steps, batch, inputs),
        "W": (directions, rows, inputs),
        "R": (directions, rows, width),
        "B": (directions, 2 * rows),
        "P": (directions, 3 * width),
        "initial_h": (directions, batch, width),
        "initial_c": (directions, batch, width),
    }
    return {
        name: (0.6 * rng.normal(size=shape)).astype(np.float32)
        for name, shape in shapes.items()
        if name in ("X", "W", "R", *more)
    }


def carry_of(op, arrays):
    """The carry from initial_h and initial_c [D, B, H], or from Y_h and Y_c."""
    ends = [CARRIES[op](*(array[d] for array in arrays)) for d in range(len(arrays[0]))]
    return ends[0] if len(ends) == 1 else {"forward": ends[0], "backward": ends[1]}


def as_onnx(layer, y, carry):
    """[Y, Y_h, ...] from what our layer returns, with the B of `layout` 1 in front."""
    ends = [carry["forward"], carry["backward"]] if isinstance(carry, dict) else [carry]
    y = y.reshape(*y.shape[:2], len(ends), -1)
    axis = 0 if layer.time_major else 1
    finals = [jnp.stack(leaves, axis) for leaves in zip(*ends, strict=True)]
    return [jnp.swapaxes(y, 1, 2) if layer.time_major else y, *finals]
