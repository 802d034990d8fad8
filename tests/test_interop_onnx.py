"""Numbers and gradients of ONNX's RNN, LSTM and GRU against onnxruntime and onnx.reference."""

import jax
import numpy as np
import pytest
from onnx_nodes import (
    GATES,
    arrays_of,
    as_onnx,
    carry_of,
    model_of,
    onnxruntime,
    reference,
    run_onnx,
    session_of,
)
from table import assert_close, jit

from seqmodels.interop.onnx import from_onnx

EVERYTHING = {
    "RNN": ("B", "initial_h"),
    "LSTM": ("B", "initial_h", "initial_c", "P"),
    "GRU": ("B", "initial_h"),
}


def random_node(rng, op):
    """(arrays, names of those fed at run time, attributes) of random settings."""
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    directions = 1 + (direction == "bidirectional")
    steps, batch, inputs, width = (int(n) for n in rng.integers(1, (8, 5, 6, 9)))
    more = {"B"} if rng.integers(4) else set()
    start = str(rng.choice(["none", "held", "fed"]))
    if start != "none":
        more |= {"initial_h"} | ({"initial_c"} if op == "LSTM" else set())
    if op == "LSTM" and rng.integers(2):
        more |= {"P"}
    arrays = arrays_of(rng, op, directions, steps, batch, inputs, width, more)
    fed = {"X"} | {name for name in arrays if name.startswith("initial") and start == "fed"}
    if rng.integers(2):
        arrays["sequence_lens"] = rng.integers(1, steps + 1, size=batch).astype(np.int32)
        fed |= {"sequence_lens"} if rng.integers(2) else set()
    attributes = {"direction": direction, "opset": int(rng.choice([7, 14, 22]))}
    attributes["constants"] = bool(rng.integers(2))
    if rng.integers(2):
        attributes["clip"] = float(rng.uniform(0.2, 2.0))
    if op == "LSTM":
        attributes["input_forget"] = int(rng.integers(3) == 0)
    if op == "GRU":
        attributes["linear_before_reset"] = int(rng.integers(2))
    if op == "RNN":
        attributes["activations"] = [str(rng.choice(["Tanh", "Relu"]))] * directions
    return arrays, tuple(sorted(fed)), attributes


def compare(seed):
    """Numbers, what the model holds, counts, and where it is smooth the gradient, of one node."""
    rng = np.random.default_rng(seed)
    op = [*GATES][seed % 3]
    arrays, fed, attributes = random_node(rng, op)
    directions, width = arrays["R"].shape[0], arrays["R"].shape[2]
    found = from_onnx(model_of(op, arrays, fed, **attributes))
    theirs = run_onnx(op, arrays, fed, **attributes)

    assert set(found.feeds) == set(fed)
    carry, lengths = found.carry, found.lengths
    if "initial_h" in arrays:
        given = carry_of(op, [arrays[n] for n in ("initial_h", "initial_c") if n in arrays])
        assert (carry is None) == ("initial_h" in fed)
        if carry is not None:
            jax.tree.map(np.testing.assert_array_equal, carry, given)
        carry = given
    if "sequence_lens" in arrays:
        assert (lengths is None) == ("sequence_lens" in fed)
        lengths = arrays["sequence_lens"]

    cotangents = [rng.normal(size=array.shape).astype(np.float32) for array in theirs]

    @jit
    def slopes(*arguments):
        def forward(params, x, carry):
            y, carry = found.layer.apply({"params": params}, x, carry, lengths=lengths)
            return as_onnx(found.layer, y, carry)

        out, pullback = jax.vjp(forward, *arguments)
        return out, pullback(cotangents)

    ours, gradients = slopes(found.params, arrays["X"], carry)
    assert_close(ours, theirs, 1e-5)
    if "clip" not in attributes and "Relu" not in attributes.get("activations", ()):
        direction, expected = slope_along_a_direction(rng, op, arrays, cotangents, attributes)
        along = from_onnx(model_of(op, direction, **attributes))
        along = (along.params, direction["X"], along.carry)
        products = jax.tree.map(lambda a, b: np.sum(np.float64(a) * b), gradients, along)
        slope = sum(jax.tree.leaves(products))
        assert abs(slope - expected) < 1e-4 * max(1, abs(expected)), (slope, expected)

    count = sum(np.size(leaf) for leaf in jax.tree.leaves(found.params))
    total = sum(arrays[name].size for name in ("W", "R", "B", "P") if name in arrays)
    summed = {"RNN": 1, "LSTM": 4, "GRU": 2}[op] * ("B" in arrays)
    unused = 0
    if attributes.get("input_forget"):
        unused = arrays["W"].shape[2] + width + ("B" in arrays) + ("P" in arrays)
    assert count == total - directions * width * (summed + unused)


def slope_along_a_direction(rng, op, arrays, cotangents, attributes):
    """A random direction in all inputs, and the slope of the weighted outputs along it.

    By differences of fourth order: onnxruntime has no gradients of its own.
    """
    floats = tuple(name for name in arrays if name != "sequence_lens")
    direction = {name: rng.normal(size=arrays[name].shape) for name in floats}
    length = np.sqrt(sum(np.sum(array**2) for array in direction.values()))
    direction = {name: np.float32(array / length) for name, array in direction.items()}
    session = session_of(model_of(op, arrays, floats, **attributes))

    def loss(step):
        moved = {name: arrays[name] + np.float32(step) * direction[name] for name in floats}
        outputs = session.run(None, moved)
        return sum(np.sum(np.float64(a) * b) for a, b in zip(outputs, cotangents, strict=True))

    h = 0.05
    first, second = (loss(k * h) - loss(-k * h) for k in (1, 2))
    held = {"sequence_lens": arrays["sequence_lens"]} if "sequence_lens" in arrays else {}
    return direction | held, (8 * first - second) / (12 * h)


@pytest.mark.parametrize("seed", range(9))
def test_numbers_and_gradients_equal_onnxruntime(seed):
    compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9, 240))
def test_many_numbers_and_gradients_equal_onnxruntime(seed):
    compare(seed)


def ours_of(found, x, carry=None, lengths=None):
    """Our [Y, Y_h, ...] for what came from a node."""
    carry = found.carry if carry is None else carry
    y, carry = jit(found.layer.apply)({"params": found.params}, x, carry, lengths=lengths)
    return [np.asarray(array) for array in as_onnx(found.layer, y, carry)]


def by_evaluator(op, arrays, **attributes):
    model = model_of(op, arrays, **attributes)
    return reference.ReferenceEvaluator(model).run(None, {"X": arrays["X"]})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_layout_1_is_batch_first(op, direction):
    """onnxruntime refuses it; the numbers are the evaluator's."""
    directions = 1 + (direction == "bidirectional")
    arrays = arrays_of(np.random.default_rng(0), op, directions, more=EVERYTHING[op])
    flat = from_onnx(model_of(op, arrays, direction=direction))
    for name in ("X", "initial_h", "initial_c"):
        if name in arrays:
            arrays[name] = np.swapaxes(arrays[name], 0, 1).copy()
    settings = {"direction": direction, "layout": 1}
    found = from_onnx(model_of(op, arrays, **settings))
    assert (flat.layer.time_major, found.layer.time_major) == (True, False)
    jax.tree.map(np.testing.assert_array_equal, found[1:3], flat[1:3])
    assert_close(ours_of(found, arrays["X"]), by_evaluator(op, arrays, **settings), 1e-5)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="layout == 1"):
        run_onnx(op, arrays, **settings)


@pytest.mark.parametrize(
    "op, setting",
    [
        ("RNN", {"clip": 0.3}),
        ("LSTM", {"clip": 0.3}),
        ("GRU", {"clip": 0.3}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"activations": ["Sigmoid", "Tanh", "Relu"]}),
        ("GRU", {"activations": ["Sigmoid", "Relu"]}),
        ("RNN", {"sequence_lens": np.array([1, 6, 3], np.int32)}),
        ("LSTM", {"sequence_lens": np.array([1, 6, 3], np.int32)}),
        ("GRU", {"sequence_lens": np.array([1, 6, 3], np.int32)}),
    ],
)
def test_onnx_reference_overlooks_what_onnxruntime_heeds(op, setting):
    arrays = arrays_of(np.random.default_rng(0), op, more=EVERYTHING[op])
    plain = run_onnx(op, arrays)
    if "sequence_lens" in setting:
        arrays, setting = arrays | setting, {}
    assert_close(by_evaluator(op, arrays, **setting), plain, 1e-5)
    difference = np.abs(run_onnx(op, arrays, **setting)[0] - plain[0]).max()
    assert difference > 1e-2


def test_onnx_reference_has_no_relu():
    arrays = arrays_of(np.random.default_rng(0), "RNN")
    with pytest.raises(RuntimeError, match="Unknown activation function 'Relu'"):
        by_evaluator("RNN", arrays, activations=["Relu"])


@pytest.mark.parametrize("op", GATES)
def test_a_row_of_length_0_keeps_its_start_here_and_ends_at_zero_there(op):
    arrays = arrays_of(np.random.default_rng(0), op, 2, more=EVERYTHING[op])
    arrays["sequence_lens"] = np.array([6, 0, 3], np.int32)
    found = from_onnx(model_of(op, arrays, direction="bidirectional"))
    theirs = run_onnx(op, arrays, direction="bidirectional")
    ours = ours_of(found, arrays["X"], lengths=found.lengths)
    assert_close([a[..., [0, 2], :] for a in ours], [a[..., [0, 2], :] for a in theirs], 1e-5)
    np.testing.assert_array_equal(ours[0][:, :, 1], 0)
    for mine, their, name in zip(ours[1:], theirs[1:], ("initial_h", "initial_c"), strict=False):
        np.testing.assert_array_equal(their[:, 1], 0)
        np.testing.assert_array_equal(mine[:, 1], arrays[name][:, 1])


def test_the_cell_before_its_second_tanh_is_not_clipped():
    """Nor in onnxruntime, though the specification's words would have it."""
    arrays = arrays_of(np.random.default_rng(0), "LSTM", steps=1, more=EVERYTHING["LSTM"])
    arrays["initial_c"] = np.full_like(arrays["initial_c"], 6)
    clip = 0.5
    theirs = run_onnx("LSTM", arrays, clip=clip)
    assert_close(ours_of(from_onnx(model_of("LSTM", arrays, clip=clip)), arrays["X"]), theirs, 1e-5)
    largest_gate = 1 / (1 + np.exp(-clip))
    assert np.all(theirs[1] > 0) and np.any(theirs[1] > largest_gate * np.tanh(clip))
