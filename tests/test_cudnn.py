"""`implementation="cudnn"`: what it takes, and how weights, lengths and directions are handed over.

Without a GPU, JAX's own plain LSTM over cuDNN's packed weights stands in for cuDNN.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import rnn

from seqmodels import recurrence
from seqmodels.cells import GRU, LSTM
from seqmodels.cells.lstm import LSTMCarry

CELL = LSTM(4)
BATCH, STEPS, INPUTS = 5, 6, 3
LENGTHS = np.array([6, 1, 0, 3, 5], np.int32)
ON_GPU = jax.default_backend() == "gpu"


def plain_lstm(x, h, c, weights, lengths, *sizes):
    inputs, features, layers, dropout, both = sizes
    unpacked = rnn.unpack_lstm_weights(weights, inputs, features, layers, both)
    y, h, c = rnn.lstm_ref(x, h, c, *unpacked, lengths, *sizes)
    return y, h, c


@pytest.fixture
def packed(monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(rnn, "lstm", plain_lstm)


def arguments():
    rng = np.random.default_rng(0)

    def numbers(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    params = CELL.init(jax.random.key(0), INPUTS)
    params = jax.tree.map(lambda leaf: leaf + 0.3 * numbers(*leaf.shape), params)
    return params, numbers(BATCH, STEPS, INPUTS), LSTMCarry(numbers(BATCH, 4), numbers(BATCH, 4))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_equals_the_plain_scan_in_value_and_gradient(lengths, reverse, packed):
    def loss(arguments, implementation):
        y, final = recurrence.run(
            CELL, *arguments, lengths=lengths, reverse=reverse, implementation=implementation
        )
        return jnp.sum(jnp.sin(y)) + jnp.sum(final.h * final.c), (y, final)

    both = jax.value_and_grad(loss, has_aux=True)
    (_, found), slope = both(arguments(), "cudnn")
    (_, expected), expected_slope = both(arguments(), "reference")
    tolerance = 5e-3 if ON_GPU else 1e-5  # the products of a GPU are in TF32
    for one, other in ((found, expected), (slope, expected_slope)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
            one, other,
        )  # fmt: skip


def test_padding_reaches_nothing(packed):
    params, x, carry = arguments()
    padding = np.arange(STEPS)[None, :, None] >= LENGTHS[:, None, None]
    wild = jnp.where(padding, jnp.nan, x)
    for given in (x, wild):
        y, final = recurrence.run(
            CELL, params, given, carry, lengths=LENGTHS, implementation="cudnn"
        )
        assert np.all(np.isfinite(y)) and not np.any(np.where(padding, y, 0))
        np.testing.assert_array_equal(final.c[2], carry.c[2])


@pytest.mark.parametrize(
    "cell",
    [GRU(4), *(dataclasses.replace(CELL, **{name: value}) for name, value in {
        "peepholes": True, "projection": 2, "clip": 1.0, "layer_norm": True, "coupled": True,
        "hidden_dropout": 0.1, "dtype": jnp.bfloat16, "heads": 2, "cell_clip": 3.0,
    }.items())],
)  # fmt: skip
def test_other_cells_are_refused(cell):
    assert recurrence.choose(dataclasses.replace(CELL, bias=False), "cudnn") == "cudnn"
    with pytest.raises(ValueError, match="cudnn' serves an LSTM without options"):
        recurrence.choose(cell, "cudnn")


@pytest.mark.parametrize("name", ["mask", "reset", "remat"])
def test_what_cudnn_cannot_do_is_refused(name):
    params, x, _ = arguments()
    given = 2 if name == "remat" else np.ones((BATCH, STEPS), bool)
    with pytest.raises(ValueError, match=f"'cudnn' takes no {name}"):
        recurrence.run(CELL, params, x, implementation="cudnn", **{name: given})


@pytest.mark.skipif(ON_GPU, reason="a GPU is there")
def test_without_a_gpu_it_says_so():
    params, x, _ = arguments()
    with pytest.raises(ValueError, match="'cudnn' needs a GPU; this is a cpu: take 'auto'"):
        recurrence.run(CELL, params, x, implementation="cudnn")
