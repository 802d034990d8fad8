"""Keras layers of random weights, and their states as our carries; skips where Keras is absent."""

import contextlib
import os
import tempfile

import jax
import numpy as np
import pytest

from seqmodels.cells import GRU, LSTM, RNN, GRUCarry, LSTMCarry, RNNCarry
from seqmodels.layers import Bidirectional, Recurrent, Stack

# Before Keras is imported; its settings file of this user must not change what is compared.
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ["KERAS_HOME"] = tempfile.mkdtemp(prefix="keras-")
keras = pytest.importorskip("keras", reason="Keras is not installed: pip install '.[interop]'")
if keras.backend.backend() != "jax":
    pytest.skip("KERAS_BACKEND is not jax, whose gradients are compared", allow_module_level=True)

L = keras.layers
CARRIES = {RNN: RNNCarry, LSTM: LSTMCarry, GRU: GRUCarry}
KINDS = {
    "SimpleRNN": {},
    "LSTM": {},
    "GRU": {"reset_after": True},
    "GRU, reset before": {"reset_after": False},
}
MERGES = ("concat", "sum", "ave", "mul")
PLAIN = {"kernel_initializer": "zeros", "recurrent_initializer": "zeros"}  # overwritten anyway


@contextlib.contextmanager
def keras_promotion():
    """Keras adds vectors to matrices and whole numbers to floats; our tests forbid it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def built(layer, inputs=3, seed=0):
    """`layer` for inputs of that width, every number of it random."""
    rng = np.random.default_rng(seed)
    with keras_promotion():
        layer.build((None, None, inputs))
        layer.set_weights([0.5 * rng.normal(size=w.shape) for w in layer.weights])
    return layer


def of_kind(kind, width=4, suffix="", **settings):
    return getattr(L, kind.split(",")[0] + suffix)(width, **KINDS[kind] | PLAIN | settings)


def states_of(source, batch):
    """Zeros in the shapes of the states that a Keras layer or cell takes and returns."""
    if isinstance(source, L.Bidirectional):
        return states_of(source.forward_layer, batch) + states_of(source.backward_layer, batch)
    cell = getattr(source, "cell", source)
    if isinstance(cell, L.StackedRNNCells):
        return [states_of(one, batch) for one in cell.cells]
    return [np.zeros((batch, size)) for size in np.ravel(cell.state_size)]


def carry_of(layer, states):
    """Our carry from Keras's states, a list for each layer."""
    if isinstance(layer, Stack):
        kind = Bidirectional if layer.bidirectional else Recurrent
        pairs = zip(layer.cells, states, strict=True)
        return {f"layer_{i}": carry_of(kind(cell), [own]) for i, (cell, own) in enumerate(pairs)}
    (own,), carry = states, CARRIES[type(layer.cell)]
    if isinstance(layer, Recurrent):
        return carry(*own)
    half = len(own) // 2
    return {"forward": carry(*own[:half]), "backward": carry(*own[half:])}
