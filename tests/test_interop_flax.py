"""Weights and numbers of Flax's cells, RNN and Bidirectional, Linen's and NNX's, against Flax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_modules import (
    INPUTS,
    KINDS,
    WIDTH,
    both_ways,
    cell_of,
    filled,
    flax_out,
    held,
    our_out,
    random_case,
)
from table import assert_close, jit, normal

from seqmodels.cells import GRU, LSTM, MGU, RNN, LSTMCarry
from seqmodels.interop.flax import (
    carry_from_flax,
    carry_to_flax,
    from_flax,
    to_flax,
    to_nnx,
)
from seqmodels.layers import Bidirectional, Recurrent

pytestmark = pytest.mark.usefixtures("standard_promotion")

X = np.random.default_rng(0).normal(size=(3, 5, INPUTS)).astype(np.float32)
LENGTHS = np.array([5, 2, 0])


def their_run(case, lengths):
    """(function of (parameters, x, carry) -> (y, carry), parameters) of the Flax module."""

    def call(module, x, carry):
        if type(case.module) in KINDS:
            carry, y = module(carry, x)
        else:
            carry, y = module(x, initial_carry=carry, seq_lengths=lengths)
        return y, carry

    if case.params is not None:
        return lambda params, *rest: call(case.module.bind({"params": params}), *rest), case.params
    graphdef, params, others = nnx.split(case.module, nnx.Param, ...)
    return lambda params, *rest: call(nnx.merge(graphdef, params, others), *rest), params


def our_run(layer, lengths):
    """The same of ours, with carries in Flax's form."""

    def run(params, x, carry):
        carry = carry_from_flax(layer, carry)
        if isinstance(layer, Recurrent | Bidirectional):
            y, carry = layer.apply({"params": params}, x, carry, lengths=lengths)
        else:
            carry, y = layer.step(params, carry, x)
        return y, carry_to_flax(carry)

    return run


def in_our_tree(case, tree):
    """A gradient by Flax's names as one by ours."""
    if case.params is not None:
        return from_flax(case.module, tree)[1]
    module = nnx.clone(case.module)
    nnx.update(module, tree)
    return from_flax(module)[1]


def without_d(tree):
    def zero(path, leaf):
        return 0 * leaf if "['recurrent']['bias']" in jax.tree_util.keystr(path) else leaf

    return jax.tree_util.tree_map_with_path(zero, tree)


def random_data(rng, case, layer, params):
    """x, carry, lengths and the mask of y's real steps."""
    batch, steps = int(rng.integers(1, 5)), int(rng.integers(1, 10))
    lengths = rng.integers(1, steps + 1, size=batch)
    mask, shape = (np.arange(steps) < lengths[:, None])[:, :, None], (batch, steps)
    cell = getattr(layer, "cell", layer)
    if layer is cell:
        mask, shape = np.ones((1, 1), bool), (batch,)
    elif layer.time_major:
        mask, shape = mask.swapaxes(0, 1), (steps, batch)
    x = rng.normal(size=(*shape, case.inputs)).astype(np.float32)
    carry = jax.eval_shape(lambda: cell.initial_carry(params, batch))
    if isinstance(layer, Bidirectional):
        carry = {"forward": carry, "backward": carry}
    return x, normal(int(rng.integers(1000)), carry_to_flax(carry), np.float32), lengths, mask


def compare(seed, around=None):
    """Values, gradients, weights there and back, and their number, of a random module."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    around = around or ["cell", "RNN", "RNN", "Bidirectional", "Bidirectional"][rng.integers(5)]
    case = random_case(rng, kind, around)
    layer, params = from_flax(case.module, case.params)
    x, carry, lengths, mask = random_data(rng, case, layer, params)

    def with_gradients(run, params):
        @jit
        def both(params, x, carry):
            out, pullback = jax.vjp(lambda *a: real(*run(*a)), params, x, carry)
            return out, pullback(normal(seed, out, np.float32))

        def real(y, carry):
            return jnp.where(mask, y, 0), carry

        return both(params, x, carry)

    theirs, (d_theirs, *d_their_data) = with_gradients(*their_run(case, lengths))
    ours, (d_ours, *d_our_data) = with_gradients(our_run(layer, lengths), params)
    assert_close(ours, theirs, 1e-5)
    assert_close(d_our_data, d_their_data, 1e-4)
    if kind is nnx.GRUCell:  # it has no d, so no gradient of it
        d_ours = without_d(d_ours)
    assert_close(d_ours, in_our_tree(case, d_theirs), 1e-4)

    before = held(case.module) if case.params is None else case.params
    if case.params is None:
        module = nnx.clone(case.module)
        nnx.update(module, jax.tree.map(jnp.zeros_like, before))
        to_nnx(layer, params, module)
        after = held(module)
    else:
        after = to_flax(layer, params)
    jax.tree.map(np.testing.assert_array_equal, after, before)
    extra = 0
    if kind is nnx.GRUCell:
        extra = getattr(layer, "cell", layer).features * (1 + (around == "Bidirectional"))
    ours, theirs = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (params, before))
    assert ours == theirs + extra


@pytest.mark.parametrize(
    "around, seed", [("cell", 2), ("cell", 4), ("RNN", 1), ("RNN", 7), ("Bidirectional", 6)]
)
def test_numbers_and_gradients_equal_flax(around, seed):
    compare(seed, around)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 8 + 15 * len(KINDS)))
def test_many_numbers_and_gradients_equal_flax(seed):
    compare(seed)


def rnn(kind, **settings):
    library = nn if issubclass(kind, nn.Module) else nnx
    return filled(library.RNN(cell_of(kind), return_carry=True, **settings))


@pytest.mark.parametrize("kind", [nn.SimpleCell, nnx.GRUCell])
def test_flax_shows_what_padding_makes_of_the_carry(kind):
    """And returns it as the final carry of an empty row; here neither happens."""
    case, real = rnn(kind), np.arange(5) < LENGTHS[:, None]
    x = np.where(real[:, :, None], X, np.float32(9))
    carry, y = flax_out(case, x, seq_lengths=LENGTHS)
    ours, final = our_out(case, x, lengths=LENGTHS)
    assert_close(np.asarray(ours)[real], np.asarray(y)[real], 1e-5)
    assert_close(final.h[:2], carry[:2], 1e-5)
    assert np.all(np.any(np.asarray(y)[~real], axis=-1)) and not np.any(np.asarray(ours)[~real])
    np.testing.assert_array_equal(carry[2], y[2, -1])
    assert not np.any(final.h[2])


def test_flax_shows_a_reversed_layer_backwards():
    """Refused without keep_order; with it the two agree."""
    case = rnn(nn.SimpleCell, reverse=True)
    with pytest.raises(ValueError, match="set keep_order=True"):
        from_flax(case.module, case.params)
    aligned = case._replace(module=case.module.clone(keep_order=True))
    assert_close(our_out(aligned, X)[0][:, ::-1], flax_out(case, X)[1], 1e-5)


def test_bidirectional_ignores_what_its_layers_say():
    odd = nn.RNN(nn.SimpleCell(WIDTH), reverse=True, time_major=True)
    case = filled(nn.Bidirectional(odd, nn.RNN(nn.SimpleCell(WIDTH))))
    layer, _ = from_flax(case.module, case.params)
    assert (layer.merge, layer.time_major) == ("concat", False)
    assert_close(our_out(case, X)[0], flax_out(case, X), 1e-5)


def test_nnx_has_no_recurrent_bias_of_the_gru():
    """Its docstring, Linen and PyTorch have b_hn (google/flax#5594)."""
    module = filled(cell_of(nnx.GRUCell)).module
    before = held(module)
    assert set(before["dense_h"]) == {"kernel"}
    cell, params = from_flax(module)
    np.testing.assert_array_equal(params["recurrent"]["bias"], np.zeros(WIDTH, np.float32))
    params["recurrent"]["bias"][1] = 0.5
    params["input"]["kernel"] += 1
    with pytest.raises(ValueError, match=r"no recurrent bias \(b_hn\).*not zero"):
        to_nnx(cell, params, module)
    # Both or none: the backward direction alone has a d.
    wider = filled(both_ways(cell_of(nnx.GRUCell), cell_of(nnx.GRUCell))).module
    layer, both = from_flax(wider)
    whole = held(wider)
    with pytest.raises(ValueError, match="b_hn"):
        to_nnx(layer, {"forward": both["backward"], "backward": params}, wider)
    jax.tree.map(np.testing.assert_array_equal, (held(module), held(wider)), (before, whole))
    assert to_flax(cell, params)["hn"]["bias"][1] == 0.5


def test_one_lstm_goes_into_every_lstm_of_flax():
    """Linen's two have one tree, NNX's two have two; all four compute the same."""
    case = filled(nn.LSTMCell(WIDTH))
    cell, params = from_flax(case.module, case.params)
    h, c = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, WIDTH)), jnp.float32)
    wanted, y = cell.step(params, LSTMCarry(h=h, c=c), X[:, 0])
    variables = {"params": to_flax(cell, params)}
    steps = [
        nn.LSTMCell(WIDTH).bind(variables),
        nn.OptimizedLSTMCell(WIDTH).bind(variables),
        cell_of(nnx.LSTMCell),
        cell_of(nnx.OptimizedLSTMCell),
    ]
    for module in steps[2:]:
        to_nnx(cell, params, module)
        assert from_flax(module)[0] == cell
    assert not set(held(steps[2])) & set(held(steps[3]))
    for step in steps:
        carry, shown = step((c, h), X[:, 0])
        assert_close((carry_from_flax(cell, carry), shown), (wanted, y), 1e-5)


def test_the_directions_may_be_of_two_kinds_that_compute_the_same():
    module = both_ways(cell_of(nnx.LSTMCell), cell_of(nnx.OptimizedLSTMCell))
    layer, params = from_flax(filled(module).module)
    before = held(module)
    nnx.update(module, jax.tree.map(jnp.zeros_like, before))
    to_nnx(layer, params, module)
    jax.tree.map(np.testing.assert_array_equal, held(module), before)


@pytest.mark.parametrize(
    "layer", [Recurrent(LSTM(2)), Recurrent(RNN(2)), GRU(2), MGU(2), Bidirectional(LSTM(2))]
)
def test_carries_go_round(layer):
    cell = getattr(layer, "cell", layer)
    carry = normal(0, jax.eval_shape(lambda: cell.initial_carry({}, 3)), np.float32)
    if isinstance(layer, Bidirectional):
        carry = {"forward": carry, "backward": normal(1, carry, np.float32)}
    again = carry_from_flax(layer, carry_to_flax(carry))
    assert jax.tree.structure(again) == jax.tree.structure(carry)
    jax.tree.map(np.testing.assert_array_equal, again, carry)


def test_a_cell_named_in_its_parent():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.RNN(nn.SimpleCell(WIDTH))(x)

    case = filled(Model())
    tree = {"cell": case.params["SimpleCell_0"]}
    layer, params = from_flax(nn.RNN(nn.SimpleCell(WIDTH)), tree)
    y, _ = jit(layer.apply)({"params": params}, X)
    assert_close(y, flax_out(case, X), 1e-5)


def test_boxed_parameters_are_unboxed():
    module, plain, _ = filled(nn.SimpleCell(WIDTH))
    boxed = jax.tree.map(lambda leaf: nn.Partitioned(leaf, (None,) * leaf.ndim), plain)
    pair = (from_flax(module, params)[1] for params in (boxed, plain))
    jax.tree.map(np.testing.assert_array_equal, *pair)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nnx.OptimizedLSTMCell])
def test_weights_of_any_dtype_survive(kind):
    module, params, _ = filled(cell_of(kind))
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params or held(module))
    if params is None:
        nnx.update(module, half)
    cell, ours = from_flax(module, params and half)
    assert {leaf.dtype for leaf in jax.tree.leaves(ours)} == {jnp.dtype(jnp.bfloat16)}
    if params is None:
        to_nnx(cell, ours, module)
    back = held(module) if params is None else to_flax(cell, ours)
    jax.tree.map(np.testing.assert_array_equal, back, half)


def test_dtype_is_that_of_the_operands():
    """Where it is the parameters' it says nothing; in Flax it is that of sums too, which round."""
    module = filled(cell_of(nnx.SimpleCell)).module
    assert module.dtype == jnp.float32 and from_flax(module)[0].dtype is None
    case = filled(nn.RNN(nn.LSTMCell(WIDTH, dtype=jnp.bfloat16), return_carry=True))
    assert from_flax(case.module, case.params)[0].cell.dtype == jnp.bfloat16
    off = np.abs(our_out(case, X)[0] - flax_out(case, X)[1]).max()
    assert 1e-4 < off < 2e-2


def test_what_flax_cannot_run_in_half_precision_itself():
    half = nn.RNN(nn.SimpleCell(WIDTH, dtype=jnp.bfloat16))
    case = rnn(nn.SimpleCell)._replace(module=half)
    with pytest.raises(TypeError, match="carry"):
        flax_out(case, X)
    assert our_out(case, X)[0].dtype == jnp.float32
    with pytest.raises(NotImplementedError, match="bfloat16"):
        nn.GRUCell(4, param_dtype=jnp.bfloat16).init(jax.random.key(0), X[:, 0], X[:, 0])
