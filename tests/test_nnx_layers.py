"""NNX modules around the layers: equal to Linen's, under every transform of NNX."""

import copy
import pickle

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax_modules import both_ways, cell_of, filled
from table import INPUTS, KEY, apply, assert_close, jit, module_params, normal

from seqmodels import initializers
from seqmodels.cells import GRU, LSTM, RNN, LearnedCarry, Zoneout
from seqmodels.interop.flax import from_flax
from seqmodels.layers import Bidirectional, Recurrent, Stack
from seqmodels.nnx_layers import Layer

BATCH, STEPS, WIDTH = 3, 5, 4
X = np.random.default_rng(0).normal(size=(BATCH, STEPS, INPUTS)).astype(np.float32)
MASK = np.random.default_rng(1).random((BATCH, STEPS)) < 0.7
RESET = np.random.default_rng(2).random((BATCH, STEPS)) < 0.2
SMALL = initializers.Normal(0.5)
QUIET = Recurrent(RNN(WIDTH))
NOISY = Recurrent(RNN(WIDTH, input_init=SMALL, recurrent_init=SMALL, hidden_dropout=0.5))

LAYERS = {
    "learned start, backwards": Recurrent(LearnedCarry(GRU(WIDTH)), reverse=True),
    "time major, bfloat16": Recurrent(LSTM(WIDTH, dtype=jnp.bfloat16), time_major=True),
    "both ways, zoneout": Bidirectional(Zoneout(RNN(WIDTH), h=0.3), merge="sum"),
    "stack, dropout between": Stack((RNN(5), GRU(WIDTH, candidate_dropout=0.2)), dropout=0.4),
}


def model_of(layer, seed=0, **settings):
    """(model, its parameters), random everywhere."""
    params = module_params(layer, X, seed=seed)["params"]
    return Layer(layer, INPUTS, params=params, **settings), params


def key_of(seed):
    """A key that compiles quickly."""
    return jax.random.key(seed, impl="unsafe_rbg")


def rngs_of(seed=0):
    return nnx.Rngs(params=KEY, dropout=key_of(seed))


def stream(seed):
    """Keys as a module built with `rngs_of(seed)` draws them."""
    return rngs_of(seed).dropout.fork()


def out_of(model, *arguments, **flags):
    """`model(...)` in one compiled program, which leaves the module as it was."""
    graphdef, state = nnx.split(model)
    return jit(lambda state: nnx.merge(graphdef, state)(*arguments, **flags))(state)


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_equal_linen(name):
    """With masks, resets, a given carry and drawn dropout, through nnx.merge under jax.jit."""
    layer = LAYERS[name]
    model, params = model_of(layer, rngs=rngs_of(3))
    flags = {"mask": MASK, "reset": RESET}
    x = X
    if getattr(layer, "time_major", False):
        x, flags = X.swapaxes(0, 1), {key: flag.T for key, flag in flags.items()}
    _, carry = jax.eval_shape(lambda: layer.apply({"params": params}, x))
    carry = normal(5, carry, np.float32)
    graphdef, state, rest = nnx.split(model, nnx.Param, ...)
    rngs = {"dropout": stream(3)()}

    def linen(params, x, carry):
        return layer.apply({"params": params}, x, carry, train=True, rngs=rngs, **flags)

    def ours(state, x, carry):
        return nnx.merge(graphdef, state, rest, copy=True)(x, carry, **flags)

    @jit
    def with_gradients(params, state, x, carry):
        expected, pullback = jax.vjp(linen, params, x, carry)
        out, other = jax.vjp(ours, state, x, carry)
        weights = normal(6, out, np.float32)
        return (expected, pullback(weights)), (out, other(weights))

    (expected, wanted), (out, (d_state, *rest_of)) = with_gradients(params, state, x, carry)
    assert_close(out, expected, 1e-6)
    assert_close((nnx.to_pure_dict(d_state)["params"], *rest_of), wanted, 1e-6)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(wanted[0]))


def test_state_is_the_variables_of_linen():
    """So a checkpoint of either goes into the other."""
    layer = LAYERS["stack, dropout between"]
    model, params = model_of(layer, rngs=rngs_of())
    state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    jax.tree.map(np.testing.assert_array_equal, state, {"params": params})
    jax.tree.map(np.testing.assert_array_equal, model.tree(), params)
    other = module_params(layer, X, seed=9)
    nnx.update(model, other)
    jax.tree.map(np.testing.assert_array_equal, model.tree(), other["params"])


def test_new_parameters_are_those_of_linen():
    model = Layer(NOISY, INPUTS, rngs=rngs_of(5))
    expected = jit(NOISY.init)(rngs_of(5).params(), X)["params"]
    assert_close(model.tree(), expected, 1e-6)


def test_one_step_of_training():
    """nnx.jit, nnx.value_and_grad, nnx.Optimizer do what Linen and optax do; dropout moves on."""
    model, params = model_of(NOISY, rngs=rngs_of(7))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer):
        loss, grads = nnx.value_and_grad(lambda model: jnp.sum(model(X)[0] ** 2))(model)
        optimizer.update(model, grads)
        return loss

    @jit
    def expected_step(params, key):
        def loss(params):
            y, _ = NOISY.apply({"params": params}, X, train=True, rngs={"dropout": key})
            return jnp.sum(y**2)

        value, grads = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    keys = stream(7)
    for _ in range(2):
        loss, (expected, params) = train_step(model, optimizer), expected_step(params, keys())
        assert_close((loss, model.tree()), (expected, params), 1e-5)


def test_dropout_follows_the_conventions_of_nnx():
    model, params = model_of(NOISY, rngs=rngs_of(1))
    quiet = apply(NOISY)({"params": params}, X)[0]
    keys = stream(1)

    def drawn(key):
        return apply(NOISY)({"params": params}, X, train=True, rngs={"dropout": key})[0]

    def check(y, expected):
        np.testing.assert_allclose(y, expected, atol=1e-6)

    assert np.abs(model(X)[0] - quiet).max() > 0.01  # training at first, as nnx.Dropout
    keys()
    check(model(X)[0], drawn(keys()))
    check(model(X, deterministic=True)[0], quiet)
    check(model(X, rngs=key_of(5))[0], drawn(key_of(5)))
    check(model(X, rngs=rngs_of(6))[0], drawn(rngs_of(6).dropout()))
    check(model(X, rngs=rngs_of(4).dropout)[0], drawn(rngs_of(4).dropout()))
    model.eval()
    check(model(X)[0], quiet)
    check(model(X, deterministic=False)[0], drawn(keys()))
    check(nnx.view(model, deterministic=False)(X)[0], drawn(keys()))
    assert model.deterministic
    model.train()
    check(nnx.view(model, deterministic=True)(X)[0], quiet)
    check(Layer(NOISY, INPUTS, params=params, deterministic=True)(X)[0], quiet)


def test_a_layer_without_noise_keeps_no_rngs():
    """Its parameters are all its state, and training needs no rngs."""
    model, _ = model_of(QUIET, rngs=nnx.Rngs(params=0))
    graphdef, state = nnx.split(model, nnx.Param)
    assert nnx.merge(graphdef, state).rngs is None
    assert not QUIET.stochastic and NOISY.stochastic
    assert Bidirectional(NOISY.cell).stochastic and not Bidirectional(QUIET.cell).stochastic
    stacks = [Stack((RNN(2), cell)) for cell in (QUIET.cell, NOISY.cell)]
    assert [stack.stochastic for stack in stacks] == [False, True]
    assert Stack((RNN(2),) * 2, dropout=0.1).stochastic


@pytest.mark.parametrize(
    "layer",
    [Recurrent(LSTM(WIDTH)), Stack((RNN(5), Zoneout(GRU(WIDTH), h=0.1)))],
    ids=["one", "stack"],
)
def test_a_stream_goes_on_from_its_carry(layer):
    model, _ = model_of(layer)
    model.eval()
    graphdef, state = nnx.split(model)
    call = jit(lambda state, *rest: nnx.merge(graphdef, state)(*rest))
    y, final = call(state, X)
    carry, parts = None, []
    for piece in np.split(X, STEPS, axis=1):
        part, carry = call(state, piece, carry)
        parts.append(part)
    assert_close((np.concatenate(parts, axis=1), carry), (y, final), 1e-6)
    np.testing.assert_array_equal(model.summary(final), y[:, -1])


def test_lengths_are_a_mask():
    model, _ = model_of(QUIET)
    lengths = np.array([5, 2, 0])
    masked = out_of(model, X, mask=np.arange(STEPS) < lengths[:, None])
    assert_close(out_of(model, X, lengths=lengths), masked, 1e-6)
    assert not np.any(masked[0][2])


def test_several_models_under_vmap():
    """Each is drawn, and runs, by itself."""

    @nnx.jit
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def create(rngs):
        return Layer(NOISY, INPUTS, rngs=rngs)

    models = create(rngs_of())
    models.eval()
    y, carry = nnx.jit(nnx.vmap(lambda model: model(X, reset=RESET)))(models)
    assert not np.array_equal(y[0], y[1])
    for i in range(3):
        params = jax.tree.map(lambda leaf, i=i: leaf[i], models.tree())
        expected = apply(NOISY)({"params": params}, X, reset=RESET)
        assert_close((y[i], jax.tree.map(lambda leaf, i=i: leaf[i], carry)), expected, 1e-6)


def test_as_a_part_of_a_larger_module():
    class Tagger(nnx.Module):
        def __init__(self, rngs):
            self.recurrent = Layer(NOISY, INPUTS, rngs=rngs)
            self.head = nnx.Linear(WIDTH, 2, rngs=rngs)

        def __call__(self, x):
            return self.head(self.recurrent(x)[0])

    model = Tagger(rngs_of())
    first, second = model(X), model(X)
    assert np.abs(first - second).max() > 0.01
    model.eval()
    np.testing.assert_array_equal(model(X), model(X))
    paths = {path[:3] for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    assert ("recurrent", "params", "input") in paths and ("head", "kernel") in paths


def test_copies_are_models_of_their_own():
    model, params = model_of(Recurrent(RNN(WIDTH, hidden_dropout=0.5)), rngs=rngs_of(2))
    y = nnx.clone(model)(X)[0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.layer == model.layer
        np.testing.assert_array_equal(other(X)[0], y)
        other.params["input"]["bias"][...] += 1
        jax.tree.map(np.testing.assert_array_equal, model.tree(), params)


@pytest.mark.parametrize("library", ["linen", "nnx"])
def test_imported_parameters(library):
    kind = nn.SimpleCell if library == "linen" else nnx.SimpleCell
    case = filled(both_ways(cell_of(kind), cell_of(kind)))
    layer, params = from_flax(case.module, case.params)
    model = Layer(layer, case.inputs, params=params)
    if library == "linen":
        expected = jit(case.module.apply)({"params": case.params}, X)
    else:
        expected = out_of(case.module, X)
    assert_close(out_of(model, X)[0], expected, 1e-5)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(model.tree()))


@pytest.mark.slow
def test_parameters_imported_from_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    from seqmodels.interop.torch import from_torch, to_torch

    module = torch.nn.GRU(INPUTS, WIDTH, num_layers=2, batch_first=True)
    layer, params = from_torch(module)
    model = Layer(layer, INPUTS, params=params)
    with torch.no_grad():
        expected, _ = module(torch.from_numpy(X))
    assert_close(out_of(model, X)[0], expected.numpy(), 1e-5)
    assert set(to_torch(layer, model.tree())) == set(module.state_dict())


def test_abstract_models_hold_shapes():
    """As checkpoints are restored in NNX: nothing is computed."""
    layer = Stack((RNN(5), GRU(WIDTH)), bidirectional=True)
    abstract = nnx.eval_shape(lambda: Layer(layer, INPUTS, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(abstract)
    variables = module_params(layer, X)
    nnx.replace_by_pure_dict(state, variables)
    model = nnx.merge(graphdef, state)
    assert_close(jit(lambda: model(X))(), apply(layer)(variables, X), 1e-6)


@pytest.mark.parametrize(
    "params, words",
    [
        ({}, r"params\['input'\]\['bias'\] is missing; it has shape \(4,\)"),
        (
            module_params(Recurrent(RNN(WIDTH)), X[:, :, :2])["params"],
            r"\['input'\]\['kernel'\] has shape \(2, 4\); expected \(3, 4\)",
        ),
        (
            module_params(Recurrent(GRU(WIDTH)), X)["params"],
            r"\['input'\]\['bias'\] has shape \(12,\); expected \(4,\)",
        ),
        (
            module_params(Recurrent(LearnedCarry(RNN(WIDTH))), X)["params"],
            r"\['start'\]\['h'\] belongs to another cell or layer",
        ),
    ],
)
def test_parameters_of_another_layer_are_refused(params, words):
    with pytest.raises(ValueError, match=words):
        Layer(QUIET, INPUTS, params=params)


def test_cells_are_no_layers(unchecked):
    with pytest.raises(ValueError, match="holds a Recurrent, Bidirectional or Stack, not RNN"):
        Layer(RNN(WIDTH), INPUTS, rngs=nnx.Rngs(0))


def test_missing_rngs_are_named():
    with pytest.raises(ValueError, match="give rngs to draw parameters from, or params"):
        Layer(QUIET, INPUTS)
    model, _ = model_of(NOISY)
    with pytest.raises(ValueError, match="dropout is drawn from rngs, and there are none"):
        model(X)
    assert model(X, deterministic=True)[0].shape == (BATCH, STEPS, WIDTH)
