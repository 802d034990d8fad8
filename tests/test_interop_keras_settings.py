"""What of Keras's settings is taken, what is refused, and where Keras differs from us."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from keras_layers import (
    KINDS,
    MERGES,
    L,
    built,
    carry_of,
    keras,
    keras_promotion,
    of_kind,
    states_of,
)
from table import KEY, assert_close, jit

from seqmodels import recurrence
from seqmodels.cells import GRU, LSTM, MGU, RNN, LearnedCarry, LSTMCarry
from seqmodels.initializers import Constant
from seqmodels.interop.keras import from_keras, to_keras
from seqmodels.layers import Bidirectional, Recurrent, Stack


def run(layer, params, x, carry=None, **flags):
    return jit(layer.apply)({"params": params}, x, carry, **flags)


def show(layer, x, **options):
    """What a Keras layer returns, as NumPy."""
    with keras_promotion():
        return jax.tree.map(np.asarray, jit(functools.partial(layer, **options))(x))


X = np.random.default_rng(3).normal(size=(2, 5, 3)).astype(np.float32)
MASK = np.array([[False, True, True, False, True], [True, True, True, False, False]])


@pytest.mark.parametrize("kind", KINDS)
def test_backwards_keras_lists_its_outputs_the_other_way_round(kind):
    source = built(of_kind(kind, go_backwards=True, return_sequences=True))
    layer, params = from_keras(source)
    assert layer.reverse
    y, carry = run(layer, params, X, mask=MASK)
    theirs = show(source, X, mask=jnp.asarray(MASK))[:, ::-1]
    assert_close(y[MASK], theirs[MASK], 1e-5)
    source.return_sequences = False
    assert_close(layer.summary(carry), show(source, X, mask=jnp.asarray(MASK)), 1e-5)


def masked_outputs(wrap=lambda layer: layer, **settings):
    """(ours, Keras's) outputs under MASK from a start of ones."""
    source = built(wrap(of_kind("LSTM", return_sequences=True, **settings)))
    layer, params = from_keras(source)
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), states_of(source, len(X)))
    y, _ = run(layer, params, X, carry_of(layer, [ones]), mask=MASK)
    theirs = show(source, X, mask=jnp.asarray(MASK), initial_state=[*map(jnp.asarray, ones)])
    assert_close(y[MASK], theirs[MASK], 1e-5)
    assert not np.any(np.asarray(y)[~MASK])
    return np.asarray(y), theirs


def test_at_masked_steps_keras_repeats_and_ours_is_zero():
    _, theirs = masked_outputs()
    np.testing.assert_array_equal(theirs[0, 0], 1)  # the initial h
    for row, step in ((0, 3), (1, 3), (1, 4)):
        np.testing.assert_array_equal(theirs[row, step], theirs[row, step - 1])


def test_zero_output_for_mask_is_ours():
    y, theirs = masked_outputs(zero_output_for_mask=True)
    assert_close(y, theirs, 1e-5)


@pytest.mark.parametrize("merge", MERGES)
def test_both_directions_are_masked_alike(merge):
    y, theirs = masked_outputs(lambda layer: L.Bidirectional(layer, merge_mode=merge))
    assert_close(y, theirs, 1e-5)


@pytest.mark.parametrize("wrap", [lambda layer: layer, L.Bidirectional])
def test_unrolled_keras_forgets_zero_output_for_mask(wrap):
    _, theirs = masked_outputs(wrap, unroll=True, zero_output_for_mask=True)
    np.testing.assert_array_equal(theirs[0, 0, :4], 0)  # and shows no initial h
    np.testing.assert_array_equal(theirs[1, 3, :4], theirs[1, 2, :4])
    assert np.all(theirs[1, 3, :4])


def test_the_last_output_is_the_last_real_steps_here_and_zero_in_keras():
    source = built(of_kind("GRU", zero_output_for_mask=True))
    layer, params = from_keras(source)
    last = np.asarray(layer.summary(run(layer, params, X, mask=MASK)[1]))
    theirs = show(source, X, mask=jnp.asarray(MASK))
    assert_close(last[0], theirs[0], 1e-5)
    np.testing.assert_array_equal(theirs[1], 0)
    source.zero_output_for_mask = False
    assert_close(last, show(source, X, mask=jnp.asarray(MASK)), 1e-5)


def test_lengths_are_a_mask_and_an_empty_row_keeps_its_start():
    source = built(of_kind("LSTM", return_state=True))
    layer, params = from_keras(source)
    lengths = np.array([4, 0])
    start = [np.full((2, 4), 0.5, np.float32), np.full((2, 4), -0.5, np.float32)]
    _, carry = run(layer, params, X, LSTMCarry(*start), lengths=lengths)
    mask = jnp.arange(5)[None] < lengths[:, None]
    _, *states = show(source, X, mask=mask, initial_state=[*map(jnp.asarray, start)])
    assert_close(carry, LSTMCarry(*states), 1e-5)
    np.testing.assert_array_equal(carry.c[1], start[1][1])


def test_a_mixed_policy_rounds_more_in_keras():
    source = built(of_kind("LSTM", return_sequences=True, dtype="mixed_bfloat16"))
    layer, params = from_keras(source)
    assert layer.cell.dtype == jnp.bfloat16
    assert params["input"]["kernel"].dtype == np.float32
    y = np.asarray(run(layer, params, X)[0])
    theirs = show(source, X)
    assert (y.dtype, theirs.dtype) == (np.float32, jnp.bfloat16)
    difference = np.abs(y - theirs.astype(np.float32)).max()
    assert 1e-4 < difference < 3e-2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_any_dtype_survive(dtype):
    source = built(of_kind("GRU", dtype=dtype))
    layer, params = from_keras(source)
    assert layer.cell.dtype is None
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {dtype}
    np.testing.assert_array_equal(to_keras(layer, params)[0], np.array(source.cell.kernel.value))


def test_recurrent_dropout_of_SimpleRNN_is_hidden_dropout():
    """The same mask, given to Keras, makes the same numbers."""
    source = built(of_kind("SimpleRNN", recurrent_dropout=0.4, return_sequences=True))
    layer, params = from_keras(source)
    assert layer.cell.hidden_dropout == 0.4
    keep = layer.cell.noise(KEY, len(X), X.shape[1]).sequence["hidden"]
    assert 0 < np.mean(keep) < 1
    y, _ = jit(functools.partial(recurrence.run, layer.cell))(params, X, key=KEY)
    source.cell._recurrent_dropout_mask = jnp.where(keep, 1 / 0.6, 0.0)
    assert_close(y, show(source, X, training=True), 1e-5)


@pytest.mark.parametrize("form", ["cells", "layers"])
def test_dropout_inside_a_stack_is_one_mask_over_time(form):
    """The masks that ours drew, given to Keras, make the same numbers."""
    kinds = {"LSTM": 0.0, "GRU": 0.4, "SimpleRNN": 0.4}
    suffix, whole = ("Cell", {}) if form == "cells" else ("", {"return_sequences": True})
    sources = [of_kind(kind, 4, suffix, dropout=d, **whole) for kind, d in kinds.items()]
    if form == "cells":
        sources, cells = [L.RNN(sources, return_sequences=True)], sources
    else:
        cells = [source.cell for source in sources]
    for i, source in enumerate(sources):
        built(source, 4 if i else 3)
    layer, params = from_keras(sources[0] if form == "cells" else sources)
    assert (layer.dropout, layer.dropout_per_step) == (0.4, False)
    apply = functools.partial(
        layer.apply,
        train=True,
        capture_intermediates=lambda module, _: module.name == "between",
        mutable="intermediates",
    )
    (y, _), kept = jit(apply)({"params": params}, X, rngs={"dropout": KEY})
    for cell, dropped in zip(cells[1:], *kept["intermediates"]["between"].values(), strict=True):
        keep = dropped[:, 0] != 0
        assert 0 < np.mean(keep) < 1
        np.testing.assert_array_equal(dropped != 0, np.broadcast_to(keep[:, None], dropped.shape))
        cell._dropout_mask = jnp.where(keep, 1 / 0.6, 0.0)
    theirs = X
    for source in sources:
        theirs = show(source, theirs, training=True)
    assert_close(y, theirs, 1e-5)


class Own(L.LSTM):
    """May compute anything."""


def both(layer, backward=None, **settings):
    return built(L.Bidirectional(layer, backward_layer=backward, **settings))


def stack(*layers):
    """The layers on top of each other; `built` for their widths."""
    inputs, sources = 3, []
    for layer in layers:
        sources.append(built(layer, inputs))
        inputs = layer.compute_output_shape((1, 1, inputs))[-1]
    return sources


lstm, gru, rnn = (functools.partial(of_kind, kind) for kind in ("LSTM", "GRU", "SimpleRNN"))
S = {"return_sequences": True}


def tanh(x):
    """One's own, by Keras's name."""
    return 2 * x


@pytest.mark.parametrize(
    "source, words",
    [
        (lambda: built(lstm(activation="relu")), "lstm_cell: activation=relu is not Keras's tanh"),
        (lambda: built(lstm(recurrent_activation="hard_sigmoid")), "hard_sigmoid is not Keras's"),
        (lambda: built(gru(activation=None)), "activation=linear"),
        (lambda: built(rnn(activation="elu")), "elu is not Keras's tanh or relu"),
        (lambda: built(rnn(activation=tanh)), "activation=tanh is not Keras's"),
        (lambda: built(gru(dropout=0.1)), "gru_cell: dropout=0.1"),
        (lambda: built(gru(recurrent_dropout=0.1)), "recurrent_dropout=0.1"),
        (lambda: built(lstm(recurrent_dropout=0.1)), "recurrent_dropout=0.1"),
        (lambda: built(lstm(kernel_regularizer="l2")), "kernel_regularizer"),
        (lambda: built(lstm(recurrent_constraint="unit_norm")), "recurrent_constraint"),
        (lambda: built(lstm(activity_regularizer="l2")), "activity_regularizer"),
        (lambda: both(lstm(), activity_regularizer="l2"), "bidirectional.*activity_regularizer"),
        (lambda: built(L.RNN(lstm(4, "Cell"), dtype="mixed_bfloat16")), "computes in bfloat16"),
        (lambda: lstm(), "has no weights yet"),
        (lambda: built(Own(4)), "Own is not one of"),
        (lambda: L.Dense(4), "Dense is not one of"),
        (lambda: L.LSTMCell(4), "LSTMCell is not one of"),
        (lambda: both(gru(), merge_mode=None), "merge_mode=None is not in .*'concat'"),
        (lambda: both(gru(dropout=0.1)), "dropout=0.1"),
        (
            lambda: both(gru(), gru(reset_after=False, go_backwards=True)),
            "directions differ: GRU.*reset_after=True.* and .*reset_after=False",
        ),
        (lambda: both(gru(go_backwards=True), gru()), "forward_.*: go_backwards=True"),
        (
            lambda: built(L.RNN([lstm(4, "Cell")] * 2, go_backwards=True)),
            "go_backwards=True around several cells",
        ),
        (list, "the list is empty"),
        (lambda: stack(lstm(**S), both(lstm())), "one and two directions"),
        (lambda: stack(lstm(go_backwards=True, **S), lstm()), "go_backwards=True in a"),
        (lambda: [built(lstm(3)), built(lstm(3))], "lstm.*: return_sequences=False"),
        (lambda: [built(lstm(**S)), built(lstm())], r"layer_1.*\(3, 16\).*\(4, 16\)"),
        (
            lambda: [both(lstm(3, **S), merge_mode="sum"), both(lstm(3), merge_mode="mul")],
            r"one merge_mode; given are \['mul', 'sum'\]",
        ),
        (lambda: stack(lstm(dropout=0.1, **S), lstm(dropout=0.1)), "lstm_cell: dropout"),
        (
            lambda: stack(lstm(**S), lstm(dropout=0.1, **S), lstm(dropout=0.2)),
            r"dropout=\[0.1, 0.2\] inside a stack; it must be one rate",
        ),
        (
            lambda: stack(lstm(**S), lstm(dropout=0.1, implementation=1)),
            "implementation=2",
        ),
        (
            lambda: [both(gru(m, dropout=d, **S), merge_mode="sum") for m, d in ((3, 0), (3, 0.1))],
            r"dropout=\[0.1\] inside a stack; .* in one direction",
        ),
    ],
)
def test_what_ours_do_not_compute_is_refused(source, words):
    with keras_promotion():
        source = source()
    with pytest.raises(ValueError, match=words):
        from_keras(source)


def test_a_stateful_layer_is_refused():
    with keras_promotion():
        source = lstm(stateful=True)
        source.build((2, None, 3))
    with pytest.raises(ValueError, match="stateful=True"):
        from_keras(source)


@pytest.mark.parametrize(
    "layer, words",
    [
        (Recurrent(LSTM(4, peepholes=True)), r"LSTM\(peepholes=True\)"),
        (Recurrent(LSTM(4, coupled=True)), r"LSTM\(coupled=True\)"),
        (Recurrent(LSTM(4, projection=2)), r"LSTM\(projection=2\)"),
        (Recurrent(LSTM(4, clip=1.0)), r"LSTM\(clip=1.0\)"),
        (Recurrent(LSTM(4, hidden_dropout=0.1)), r"LSTM\(hidden_dropout=0.1\)"),
        (Recurrent(GRU(4, z_keeps=False)), r"GRU\(z_keeps=False\)"),
        (Recurrent(GRU(4, heads=2)), r"GRU\(heads=2\)"),
        (Recurrent(RNN(4, layer_norm=True)), r"RNN\(layer_norm=True\)"),
        (
            Recurrent(RNN(4, hidden_dropout=0.1, dropout_per_step=True)),
            r"RNN\(dropout_per_step=True\)",
        ),
        (Bidirectional(MGU(4)), "counterpart for MGU"),
        (Stack((RNN(4), LearnedCarry(RNN(4)))), "counterpart for LearnedCarry"),
        (Bidirectional(RNN(4), time_major=True), r"Bidirectional\(time_major=True\)"),
    ],
)
def test_what_keras_cannot_express_is_refused(layer, words):
    with pytest.raises(ValueError, match=words):
        to_keras(layer, {})


def test_parameters_of_another_width_are_refused():
    _, params = from_keras(built(lstm()))
    with pytest.raises(ValueError, match=r"\['input'\]\['bias'\] has shape \(16,\)"):
        to_keras(Recurrent(LSTM(5)), params)


def test_settings_that_are_taken():
    cells = [
        from_keras(built(layer))[0].cell
        for layer in (
            lstm(),
            lstm(unit_forget_bias=False, use_bias=False),
            gru(reset_after=False),
            rnn(activation="relu", recurrent_dropout=0.2),
        )
    ]
    assert cells == [
        LSTM(4, gate_bias=Constant(1.0)),
        LSTM(4, gate_bias=Constant(0.0), bias=False),
        GRU(4, gate_bias=Constant(0.0), reset_after=False),
        RNN(4, activation="relu", hidden_dropout=0.2),
    ]


def test_weights_trained_here_go_to_keras():
    """Both biases of a GRU, not 0, without reset_after too; a Stack goes to a whole model."""
    rng = np.random.default_rng(0)
    stack = Stack((GRU(4), GRU(4, reset_after=False), LSTM(4), RNN(4)), dropout=0.1)
    shapes = jax.eval_shape(stack.init, jax.random.key(0), X)["params"]
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    with keras_promotion():
        model = keras.Sequential(
            [
                keras.Input((None, 3)),
                gru(**S),
                L.Dropout(0.1),
                gru(reset_after=False, **S),
                L.Dropout(0.1),
                lstm(**S),
                L.Dropout(0.1),
                rnn(),
            ]
        )
        model.set_weights([array for own in to_keras(stack, params) for array in own])
    _, carry = run(stack, params, X)
    assert_close(carry["layer_3"].h, show(model, X), 1e-5)
