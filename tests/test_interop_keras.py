"""Numbers, gradients, weights and counts of Keras's recurrent layers, against Keras itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from keras_layers import KINDS, MERGES, L, built, carry_of, keras_promotion, of_kind, states_of
from table import assert_close, jit

from seqmodels.cells import GRU
from seqmodels.interop.keras import from_keras, to_keras
from seqmodels.layers import Recurrent, Stack

FORMS = ("layer", "cell", "both", "cells", "stack", "stack of both")


def source_of(rng, form):
    """Built layers on top of each other, of random settings; `form` says what the first is."""
    depth = int(rng.integers(1, 4)) if form.startswith("stack") else 1
    unroll, merge = bool(rng.integers(5) == 0), str(rng.choice(MERGES))
    inputs, layers = int(rng.integers(1, 6)), []

    def one(suffix="", **settings):
        kind = str(rng.choice([*KINDS]))
        settings["use_bias"] = bool(rng.integers(4))
        if kind == "SimpleRNN":
            settings["activation"] = str(rng.choice(["tanh", "relu"]))
            settings["recurrent_dropout"] = float(rng.choice([0.0, 0.3]))
        if kind == "LSTM":
            settings["unit_forget_bias"] = bool(rng.integers(2))
        return of_kind(kind, int(rng.integers(1, 8)), suffix, **settings)

    for _ in range(depth):
        whole = {"return_sequences": True, "return_state": True, "unroll": unroll}
        if form in ("layer", "cell"):
            whole["go_backwards"] = bool(rng.integers(2))
        if form == "cell":
            layer = L.RNN(one("Cell"), **whole)
        elif form == "cells":
            layer = L.RNN([one("Cell") for _ in range(rng.integers(2, 4))], **whole)
        else:
            layer = one(**whole)
        if form.endswith("both"):
            layer = L.Bidirectional(layer, merge_mode=merge)
        layers.append(built(layer, inputs, int(rng.integers(1000))))
        inputs = layer.compute_output_shape((1, 1, inputs))[0][-1]
    return layers


def call(layer, weights, x, states=None, mask=None):
    """(y, states) of a Keras layer with return_state; y at its steps."""
    others = [v.value for v in layer.non_trainable_variables]
    with keras_promotion():
        (y, *states), _ = layer.stateless_call(
            weights, others, x, initial_state=states, mask=mask, training=False
        )
    if getattr(layer, "go_backwards", False):
        y = y[:, ::-1]
    return y, states


def slopes_by_keras(layer, slopes):
    """Our gradients as Keras's, one list a layer: a sum's is that of each term."""
    lists = to_keras(layer, slopes)
    cells = layer.cells if isinstance(layer, Stack) else (layer.cell,)
    lists = lists if isinstance(layer, Stack) else [lists]
    for cell, arrays in zip(cells, lists, strict=True):
        for bias in arrays[2::3] if isinstance(cell, GRU) and cell.bias else ():
            gates = 2 * cell.features
            if cell.reset_after:
                bias[1, :gates] = bias[0, :gates]
            else:
                bias[gates:] /= 2  # to_keras adds ours of b and d, which are equal
    return lists


def compare(seed):
    """Numbers, gradients, weights and counts of one random configuration."""
    rng = np.random.default_rng(seed)
    form = FORMS[seed % len(FORMS)]
    sources = source_of(rng, form)
    source = sources if form.startswith("stack") else sources[0]
    layer, params = from_keras(source)
    batch, steps = int(rng.integers(1, 5)), int(rng.integers(1, 8))
    mask = rng.random((batch, steps)) < 0.7
    if rng.integers(2):  # ragged; a row may be empty
        mask = np.arange(steps) < rng.integers(0, steps + 1, size=(batch, 1))
    weights = [[w.value for w in one.trainable_variables] for one in sources]
    inputs = weights[0][0].shape[0]
    x, starts, d_y, d_states = random_like(
        rng,
        (
            np.zeros((batch, steps, inputs)),
            [states_of(one, batch) for one in sources],
            np.zeros((batch, steps, sources[-1].compute_output_shape((1, 1, inputs))[0][-1])),
            [states_of(one, batch) for one in sources],
        ),
    )

    def theirs(weights, x, starts):
        states = []
        for one, own, start in zip(sources, weights, starts, strict=True):
            x, state = call(one, own, x, start, mask)
            states.append(state)
        return jnp.where(mask[:, :, None], x, 0.0), states

    def ours(params, x, carry):
        return layer.apply({"params": params}, x, carry, mask=mask)

    @functools.partial(jit, static_argnums=0)
    def slopes(function, cotangents, *arguments):
        out, pullback = jax.vjp(function, *arguments)
        return out, pullback(cotangents)

    def named(states):
        return carry_of(layer, states[0] if form == "cells" else states)

    (y, states), (d_weights, dx, d_starts) = slopes(theirs, (d_y, d_states), weights, x, starts)
    out, (d_params, *rest) = slopes(ours, (d_y, named(d_states)), params, x, named(starts))
    assert_close(out, (y, named(states)), 1e-5)
    assert_close(rest, [dx, named(d_starts)], 1e-4)
    d_ours = jax.tree.leaves(slopes_by_keras(layer, d_params))
    assert_close(d_ours, jax.tree.leaves(d_weights), 1e-4)
    there_and_back(layer, params, source, sources)


def random_like(rng, tree):
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), tree)


def there_and_back(layer, params, source, sources):
    """Weights bit for bit, biases but for the sums, then settings, and counts."""
    arrays = to_keras(layer, params)
    flat = [array for own in arrays for array in own] if isinstance(layer, Stack) else arrays
    weights = [weight for one in sources for weight in one.weights]
    for got, weight in zip(flat, weights, strict=True):
        wanted = np.array(weight.value)
        if weight.name == "bias" and wanted.ndim == 2:  # the two of a GRU
            gates = 2 * wanted.shape[1] // 3
            wanted[0, :gates] += wanted[1, :gates]
            wanted[1, :gates] = 0
        np.testing.assert_array_equal(got, wanted)
    for one in sources:
        given, flat = flat[: len(one.weights)], flat[len(one.weights) :]
        one.set_weights(given)
    again, same = from_keras(source)
    assert again == layer
    jax.tree.map(np.testing.assert_array_equal, params, same)

    cells = layer.cells if isinstance(layer, Stack) else (layer.cell,)
    directions = 1 if isinstance(layer, Recurrent) else 2
    if isinstance(layer, Stack):
        directions = 1 + layer.bidirectional
    more = sum(
        (-2 if cell.reset_after else 1) * cell.features * directions
        for cell in cells
        if isinstance(cell, GRU) and cell.bias
    )
    count = sum(np.size(leaf) for leaf in jax.tree.leaves(params))
    assert count == sum(one.count_params() for one in sources) + more


@pytest.mark.parametrize("seed", range(len(FORMS)))
def test_numbers_and_gradients_equal_keras(seed):
    compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(FORMS), 204))
def test_many_numbers_and_gradients_equal_keras(seed):
    compare(seed)
