"""Settings of Flax's modules: taken over, or refused by name, and so in the other direction."""

import copy
import dataclasses
import operator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_modules import INPUTS, WIDTH, both_ways, cell_of, filled
from table import KEY, normal

from seqmodels import initializers
from seqmodels.cells import GRU, LSTM, MGU, RNN, LearnedCarry
from seqmodels.interop.flax import from_flax, to_flax, to_nnx
from seqmodels.layers import MERGES, Bidirectional, Recurrent, Stack

X = np.zeros((1, 2, INPUTS), np.float32)
ONE = cell_of(nnx.GRUCell)
PARAMS = filled(nn.GRUCell(WIDTH)).params


def one(library):
    return cell_of(library.SimpleCell, activation_fn=jax.nn.relu)


@pytest.mark.parametrize("library", [nn, nnx], ids=["linen", "nnx"])
def test_settings_are_taken_over(library):
    cell = from_flax(*filled(one(library))[:2])[0]
    assert (type(cell), cell.features, cell.activation) == (RNN, WIDTH, "relu")
    layout = {"reverse": True, "keep_order": True, "time_major": True}
    layer = from_flax(*filled(library.RNN(one(library), unroll=2, **layout))[:2])[0]
    assert layer == Recurrent(cell, reverse=True, time_major=True)
    merges = {jnp.add: "sum", operator.add: "sum", jnp.multiply: "product", operator.mul: "product"}
    merges |= {library.Bidirectional.merge_fn: "concat", MERGES["mean"]: "mean"}
    for merge_fn, merge in merges.items():
        both = both_ways(one(library), one(library), merge_fn=merge_fn, time_major=True)
        layer = from_flax(*filled(both)[:2])[0]
        assert layer == Bidirectional(cell, merge=merge, time_major=True)


def test_new_weights_start_as_in_linen():
    for kind in (nn.LSTMCell, nn.GRUCell, nn.SimpleCell, nn.MGUCell):
        case = filled(kind(WIDTH))
        cell, _ = from_flax(case.module, case.params)
        assert cell.input_init is initializers.lecun_normal
        assert cell.recurrent_init is initializers.orthogonal
        zeros = initializers.zeros  # quick to draw
        cell = dataclasses.replace(cell, input_init=zeros, recurrent_init=zeros)
        fresh = to_flax(cell, cell.init(KEY, INPUTS))
        for name, own in fresh.items():
            if "bias" in own:
                assert np.all(own["bias"] == ((kind, name) == (nn.MGUCell, "if"))), (kind, name)
    ours, theirs = initializers.lecun_normal, nn.linear.default_kernel_init
    np.testing.assert_array_equal(ours(KEY, (3, 4)), theirs(KEY, (3, 4)))


@pytest.mark.parametrize(
    "module, words",
    [
        (nn.Dense(4), "Dense is not one of linen.LSTMCell.*nnx.SimpleCell"),
        (nn.ConvLSTMCell(4, (3,)), "ConvLSTMCell is not one of"),
        (nn.RNN(nn.ConvLSTMCell(4, (3,))), "ConvLSTMCell is not one of"),
        (nn.LSTMCell(4, gate_fn=nn.hard_sigmoid), r"LSTMCell\(gate_fn=.*no counterpart here"),
        (nn.GRUCell(4, activation_fn=nn.relu), r"GRUCell\(activation_fn="),
        (nn.SimpleCell(4, activation_fn=nn.gelu), r"SimpleCell\(activation_fn="),
        (nn.SimpleCell(4, residual=True), r"SimpleCell\(residual=True\)"),
        (nn.MGUCell(4, reset_gate=False), r"MGUCell\(reset_gate=False\)"),
        (nn.GRUCell(4, carry_init=nn.initializers.ones), r"GRUCell\(carry_init="),
        (
            both_ways(nn.GRUCell(4), nn.GRUCell(4), merge_fn=lambda a, b: a + b),
            "merge_fn=.*jnp.add",
        ),
        (both_ways(*[nn.GRUCell(4)] * 2), "share their cell"),
        (nn.Bidirectional(nn.RNN(nn.GRUCell(4)), nn.GRUCell(4)), "backward_rnn is a GRUCell, not"),
        (both_ways(ONE, ONE), "share their cell"),
        (nnx.Linear(2, 2, rngs=nnx.Rngs(0)), "Linear is not one of"),
        (cell_of(nnx.LSTMCell, activation_fn=nnx.gelu), r"LSTMCell\(activation_fn="),
        (cell_of(nnx.SimpleCell, residual=True), r"SimpleCell\(residual=True\)"),
        (cell_of(nnx.GRUCell, promote_dtype=lambda *a, **k: a), r"GRUCell\(promote_dtype="),
        (copy.deepcopy(ONE), r"GRUCell\(gate_fn="),  # the copy's function is another object
    ],
)
def test_what_has_no_counterpart_here_is_refused(module, words):
    with pytest.raises(ValueError, match=words):
        from_flax(module, {} if isinstance(module, nn.Module) else None)


def test_directions_that_differ_are_refused():
    module = both_ways(nn.SimpleCell(4), nn.SimpleCell(4, activation_fn=nn.relu))
    case = filled(module)
    with pytest.raises(ValueError, match="both directions are alike here"):
        from_flax(case.module, case.params)


def changed(name, leaf, array):
    own = {key: value for key, value in PARAMS[name].items() if key != leaf}
    return PARAMS | {name: own | ({} if array is None else {leaf: array})}


@pytest.mark.parametrize(
    "params, words",
    [
        (None, "params is None"),
        ({"params": PARAMS}, r"ir/kernel is not among \['params/hn/bias'"),
        (changed("hn", "bias", None), "hn/bias is not among"),
        (changed("hr", "bias", np.zeros(4)), "hr/bias belongs to no part of this GRUCell"),
        (
            changed("iz", "kernel", np.zeros((2, 4))),
            r"iz/kernel has shape \(2, 4\); expected \(3, 4\)",
        ),
        (changed("ir", "kernel", np.zeros(())), r"ir/kernel has shape \(\); expected \(4,\)"),
        (changed("hz", "kernel", np.zeros((4, 5))), r"hz/kernel has shape \(4, 5\)"),
        (changed("hn", "bias", np.zeros(5)), r"hn/bias has shape \(5,\)"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(params, words):
    with pytest.raises(ValueError, match=words):
        from_flax(nn.GRUCell(4), params)


def test_parameters_beside_an_nnx_module_are_refused():
    with pytest.raises(ValueError, match="holds its own"):
        from_flax(ONE, {})


class Skipping(Recurrent):
    """A layer with an option that Flax does not know of."""

    skip: bool = False


@pytest.mark.parametrize(
    "layer, words",
    [
        (LSTM(4, peepholes=True), r"LSTM\(peepholes=True\)"),
        (LSTM(4, projection=2), r"LSTM\(projection=2\)"),
        (Recurrent(GRU(4, bias=False)), r"GRU\(bias=False\)"),
        (GRU(4, reset_after=False), r"GRU\(reset_after=False\)"),
        (GRU(4, z_keeps=False), r"GRU\(z_keeps=False\)"),
        (MGU(4), r"MGU\(reset_after=False\)"),
        (MGU(4, reset_after=True), r"MGU\(z_keeps=False\)"),
        (Bidirectional(RNN(4, hidden_dropout=0.1)), r"RNN\(hidden_dropout=0.1\)"),
        (LearnedCarry(RNN(4)), "LearnedCarry"),
        (Recurrent(LearnedCarry(RNN(4))), "LearnedCarry"),
        (Stack((RNN(4),)), "Stack"),
        (Skipping(RNN(4), skip=True), r"Skipping\(skip=True\)"),
    ],
)
def test_what_flax_cannot_express_is_refused(layer, words):
    with pytest.raises(ValueError, match=f"Flax has no counterpart for {words}"):
        to_flax(layer, {})


@pytest.mark.parametrize(
    "layer, module, words",
    [
        (Recurrent(GRU(4)), ONE, "layer is 'Recurrent' in layer and 'GRU' in module"),
        (LSTM(4), ONE, "layer is 'LSTM' in layer and 'GRU' in module"),
        (GRU(5), ONE, "features is 5 in layer and 4 in module"),
        (GRU(4, dtype=jnp.bfloat16), ONE, "dtype is .*bfloat16.* in layer and None in module"),
        (Recurrent(GRU(4), reverse=True), nnx.RNN(ONE), "reverse is True"),
        (Recurrent(GRU(4)), nnx.RNN(cell_of(nnx.GRUCell, 2, 4)), "read 3 features, module 2"),
        (
            Bidirectional(GRU(4)),
            both_ways(ONE, cell_of(nnx.GRUCell), merge_fn=jnp.add),
            "merge is 'concat' in layer and 'sum' in module",
        ),
    ],
)
def test_another_nnx_module_is_refused(layer, module, words):
    as_layer = layer if isinstance(layer, Recurrent | Bidirectional) else Recurrent(layer)
    shapes = jax.eval_shape(as_layer.init, jax.random.key(0), X)["params"]
    with pytest.raises(ValueError, match=words):
        to_nnx(layer, normal(0, shapes, np.float32), module)


def test_costs_and_initial_weights_are_no_reason_to_refuse():
    layer = Recurrent(GRU(4), unroll=2, remat=3, implementation="reference")
    params = normal(0, jax.eval_shape(layer.init, jax.random.key(0), X)["params"], np.float32)
    params["recurrent"]["bias"] *= 0
    to_nnx(layer, params, nnx.RNN(nnx.clone(ONE)))
    assert set(to_flax(layer, params)) == {"cell"}


@pytest.mark.parametrize("layer", [GRU(4), Recurrent(GRU(4))])
def test_parameters_of_another_layer_are_refused(layer):
    _, params = from_flax(nn.GRUCell(WIDTH), PARAMS)
    params["input"]["bias"] = params["input"]["bias"][:11]
    with pytest.raises(ValueError, match=r"params\['input'\]\['bias'\] has shape \(11,\)"):
        to_flax(layer, params)
