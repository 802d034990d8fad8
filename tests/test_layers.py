"""Layers: one direction, both, stacks, embeddings; their names, carries and parameter counts."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from flax.errors import ScopeParamShapeError
from table import INPUTS, KEY, apply, assert_close, jit, module_params, normal

from seqmodels import recurrence
from seqmodels.cells import GRU, LSTM, RNN, LearnedCarry, RNNCarry, Zoneout
from seqmodels.initializers import Normal
from seqmodels.layers import (
    MERGES,
    Bidirectional,
    Embed,
    Recurrent,
    Stack,
    stack_carry,
    unstack_carry,
)

BATCH, STEPS, WIDTH = 3, 5, 7
X = np.random.default_rng(0).normal(size=(BATCH, STEPS, INPUTS)).astype(np.float32)
LENGTHS = np.array([2, 5, 0])
MASK = np.arange(STEPS) < LENGTHS[:, None]
RESET = np.random.default_rng(1).random((BATCH, STEPS)) < 0.2
TWO = Stack((GRU(WIDTH), LSTM(4)))
TWO_BOTH_WAYS = Stack((GRU(WIDTH), LSTM(4)), bidirectional=True)


def names(tree):
    return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def carry_like(module, variables, seed=5):
    """Random numbers in the place of the carry that `module` returns."""
    _, carry = jax.eval_shape(lambda: module.apply(variables, X))
    return normal(seed, carry, np.float32)


@pytest.mark.parametrize("cell", [LSTM(WIDTH), GRU(WIDTH, reset_after=False)])
def test_a_layer_is_the_cell_run_over_time(cell):
    layer = Recurrent(cell, reverse=True)
    variables = module_params(layer, X)
    like = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))
    assert jax.tree.structure(variables["params"]) == jax.tree.structure(like)
    carry = carry_like(layer, variables)
    result = apply(layer)(variables, X, carry, mask=MASK, reset=RESET)
    expected = recurrence.run(
        cell, variables["params"], X, carry, mask=MASK, reset=RESET, reverse=True
    )
    assert_close(result, expected, 1e-6)


def test_init_is_the_cells_own():
    """Also under vmap, as for several seeds; and the input width is checked later on."""
    small = Normal(0.01)
    layer = Recurrent(GRU(4, input_init=small, recurrent_init=small))
    seeds = jax.random.split(KEY, 2)
    variables = jit(jax.vmap(lambda key: layer.init(key, X)))(seeds)
    kernel = np.asarray(variables["params"]["recurrent"]["kernel"])
    assert kernel.shape == (2, 4, 12) and 0 < np.abs(kernel).max() < 0.1
    assert not np.array_equal(kernel[0], kernel[1])
    y, _ = jit(jax.vmap(lambda v: layer.apply(v, X)))(variables)
    assert y.shape == (2, BATCH, STEPS, 4)
    with pytest.raises(ScopeParamShapeError, match=r"\(2, 12\).*\(3, 12\)"):
        layer.apply(jax.tree.map(lambda leaf: leaf[0], variables), X[:, :, :2])


@pytest.mark.parametrize("kind", [Recurrent, Bidirectional])
def test_F07_time_major_changes_the_layout_of_steps_only(kind):
    plain, swapped = kind(LSTM(WIDTH)), kind(LSTM(WIDTH), time_major=True)
    variables = module_params(plain, X)
    carry = carry_like(plain, variables)
    y, final = apply(plain)(variables, X, carry, mask=MASK, reset=RESET)
    for flags in ({"mask": MASK.T}, {"lengths": LENGTHS}):
        result = apply(swapped)(variables, X.swapaxes(0, 1), carry, reset=RESET.T, **flags)
        assert_close(result, (y.swapaxes(0, 1), final), 1e-6)


@pytest.mark.parametrize("merge", MERGES)
def test_B03_merges_of_both_directions_and_their_summary(merge):
    layer = Bidirectional(GRU(WIDTH), merge=merge)
    variables = module_params(layer, X)
    carry = carry_like(layer, variables)
    y, final = apply(layer)(variables, X, carry, mask=MASK)
    halves = {}
    for name in ("forward", "backward"):
        one = Recurrent(GRU(WIDTH), reverse=name == "backward")
        params = {"params": variables["params"][name]}
        halves[name], own = apply(one)(params, X, carry[name], mask=MASK)
        assert_close(final[name], own, 1e-6)
    expected = {
        "concat": np.concatenate([halves["forward"], halves["backward"]], axis=-1),
        "sum": halves["forward"] + halves["backward"],
        "mean": (halves["forward"] + halves["backward"]) / 2,
        "product": halves["forward"] * halves["backward"],
    }[merge]
    assert_close(y, expected, 1e-6)
    assert not np.any(np.asarray(y)[~MASK])  # A05, both directions

    # B03: the two final states, and not what stands at the last step of y.
    summary = apply(layer)(variables, final, method="summary")
    at_ends = [MERGES[merge](halves["forward"][i, n - 1], halves["backward"][i, 0])
               for i, n in enumerate(LENGTHS[:2])]  # fmt: skip
    assert_close(summary[:2], np.stack(at_ends), 1e-6)
    assert np.abs(summary[0] - y[0, -1]).max() > 0.01


def test_unknown_merge_is_refused():
    with pytest.raises(ValueError, match="merge='max' is not one of.*concat"):
        Bidirectional(GRU(3), merge="max").init(jax.random.key(0), X)


def test_B04_the_backward_half_reads_in_the_other_order():
    layer = Bidirectional(LSTM(WIDTH))
    params = module_params(layer, X)["params"]
    same = {"params": {"forward": params["forward"], "backward": params["forward"]}}
    y, _ = apply(layer)(same, X)
    flipped, _ = apply(layer)(same, X[:, ::-1])
    forward, backward = np.split(np.asarray(y), 2, axis=-1)
    np.testing.assert_allclose(backward, np.asarray(flipped)[:, ::-1, :WIDTH], atol=1e-6)
    assert np.abs(forward - backward).max() > 0.01


def test_B05_no_parameter_is_shared():
    stack = Stack((RNN(WIDTH),) * 2, bidirectional=True)
    variables = jit(stack.init)(KEY, X)
    slopes = jit(jax.grad(lambda v: jnp.sum(stack.apply(v, X)[0] ** 2)))(variables)
    parts = [(i, d) for i in (0, 1) for d in ("forward", "backward")]
    for tree in (variables, slopes):
        kernels = [tree["params"][f"layer_{i}"][d]["recurrent"]["kernel"] for i, d in parts]
        for i in range(4):
            for j in range(i):
                assert np.abs(kernels[i] - kernels[j]).max() > 1e-3, (parts[i], parts[j])


def test_B06_each_state_moves_its_own_half():
    """Carries are named by layer and direction; without input, each half shows its own start."""
    stack = Stack((RNN(2),), bidirectional=True)
    cell = {"input": {"kernel": np.zeros((INPUTS, 2)), "bias": np.zeros(2)},
            "recurrent": {"kernel": np.eye(2)}}  # fmt: skip
    variables = {"params": {"layer_0": {"forward": cell, "backward": cell}}}
    variables = jax.tree.map(np.float32, variables)
    ones = RNNCarry(np.ones((BATCH, 2), np.float32))
    for name, half in (("forward", slice(0, 2)), ("backward", slice(2, 4))):
        start = {"forward": RNNCarry(0 * ones.h), "backward": RNNCarry(0 * ones.h), name: ones}
        y, final = apply(stack)(variables, X, {"layer_0": start})
        y = np.asarray(y)
        assert np.all(y[:, :, half] > 0.1) and np.count_nonzero(y) == y[:, :, half].size
        cleared = {"reset": np.ones((BATCH, STEPS), bool)}
        everywhere, _ = apply(stack)(variables, X, {"layer_0": start}, **cleared)
        # Reset clears both; backwards no border lies behind the last step.
        later = slice(0, STEPS) if name == "forward" else slice(0, STEPS - 1)
        assert not np.any(np.asarray(everywhere)[:, later])


@pytest.mark.parametrize("stack", [TWO, TWO_BOTH_WAYS], ids=["forward", "both"])
def test_B06_carries_are_named_and_go_round(stack):
    variables = module_params(stack, X)
    y, carry = apply(stack)(variables, X)
    suffixes = [".forward", ".backward"] if stack.bidirectional else [""]
    wanted = set()
    for suffix in suffixes:
        suffix = suffix and f"['{suffix[1:]}']"
        wanted |= {f"['layer_0']{suffix}.h", f"['layer_1']{suffix}.h", f"['layer_1']{suffix}.c"}
    assert names(carry) == wanted
    _, again = apply(stack)(variables, X, carry)
    assert jax.tree.structure(again) == jax.tree.structure(carry)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.shape, b.shape), again, carry)
    top = apply(stack)(variables, carry, method="summary")
    last = np.asarray(y)[:, -1, :4]
    np.testing.assert_allclose(top[:, :4], last, atol=1e-6)

    for wrong in ({"layer_0": carry["layer_0"]}, list(carry.values()), carry["layer_0"]):
        with pytest.raises(ValueError, match=r"carry is named.*\['layer_0', 'layer_1'\]"):
            stack.apply(variables, X, wrong)
    if stack.bidirectional:
        with pytest.raises(ValueError, match=r"\['forward', 'backward'\]"):
            stack.apply(variables, X, {**carry, "layer_0": carry["layer_0"]["forward"]})


def test_a_stack_is_its_layers_one_after_another():
    """Every flag reaches every layer; the second reads both halves of the first."""
    variables = module_params(TWO_BOTH_WAYS, X)
    carry = carry_like(TWO_BOTH_WAYS, variables)
    flags = {"mask": MASK, "reset": RESET}
    x, final = X, {}
    for i, cell in enumerate(TWO_BOTH_WAYS.cells):
        name = f"layer_{i}"
        params = {"params": variables["params"][name]}
        x, final[name] = apply(Bidirectional(cell))(params, x, carry[name], **flags)
    assert_close(apply(TWO_BOTH_WAYS)(variables, X, carry, **flags), (x, final), 1e-6)


@pytest.mark.parametrize("cell", [LSTM(4), GRU(4)], ids=["lstm", "gru"])
def test_B08_fused_equals_reference_on_ragged_rows_both_ways(cell):
    rng = np.random.default_rng(0)
    x, lengths = rng.normal(size=(8, 5, 8)).astype(np.float32), np.array([4, 5, 4, 1, 1, 1, 1, 1])

    def results(implementation):
        layer = Bidirectional(cell, implementation=implementation)
        variables = module_params(layer, x)
        _, carry = jax.eval_shape(lambda: layer.apply(variables, x))

        def loss(variables, x, carry):
            out = layer.apply(variables, x, carry, lengths=lengths)
            weights = normal(3, jax.eval_shape(lambda: out), np.float32)
            return sum(
                jax.tree.leaves(jax.tree.map(lambda a, w: jnp.sum(a * w), out, weights))
            ), out

        step = jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
        return step(variables, x, normal(4, carry, np.float32))

    assert_close(results("fused"), results("reference"), 1e-5)


@pytest.mark.parametrize(
    "cell, layers, directions, count",
    [
        (GRU(2), 2, 2, 164),
        (LSTM(2), 2, 2, 208),
        (RNN(2), 2, 2, 52),
        (GRU(2), 1, 1, 38),
        (LSTM(2), 1, 1, 48),
        (LSTM(2), 2, 1, 88),
        (GRU(2), 1, 2, 76),
    ],
)
def test_F08_parameter_counts(cell, layers, directions, count):
    """From D = 3; the second layer above two directions reads width 2H."""
    stack = Stack((cell,) * layers, bidirectional=directions == 2)
    assert sum(leaf.size for leaf in jax.tree.leaves(module_params(stack, X))) == count
    gates = {GRU: 3, LSTM: 4, RNN: 1}[type(cell)]
    widths = [3] + [2 * directions] * (layers - 1)
    formula = sum(gates * 2 * (width + 2 + 1) + 2 * (type(cell) is GRU) for width in widths)
    assert count == directions * formula


@pytest.mark.parametrize("cell, gate", [(LSTM(WIDTH), 1), (GRU(WIDTH), 1)], ids=["f", "z"])
def test_F04_the_gate_bias_acts_once_in_every_layer_and_direction(cell, gate):
    small = Normal(0.1)  # quick to draw
    cell = dataclasses.replace(cell, input_init=small, recurrent_init=small)
    stack = Stack((cell,) * 2, bidirectional=True)
    params = jit(stack.init)(KEY, X)["params"]
    for layer in ("layer_0", "layer_1"):
        for direction in ("forward", "backward"):
            own = params[layer][direction]
            x = np.zeros((1, own["input"]["kernel"].shape[0]), np.float32)
            before = cell.project(own, x) + cell.recur(own, cell.initial_carry(own, 1))
            unit = np.asarray(before)[0, gate * WIDTH : (gate + 1) * WIDTH]
            np.testing.assert_allclose(jax.nn.sigmoid(unit), 0.731059, atol=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_settings_reach_the_recurrence(monkeypatch, bidirectional):
    seen, run = [], recurrence.run

    def spy(*arguments, **options):
        seen.append(options)
        return run(*arguments, **options)

    monkeypatch.setattr(recurrence, "run", spy)
    settings = {"implementation": "reference", "unroll": 2, "remat": 3}
    stack = Stack((RNN(2),) * 2, bidirectional, **settings)
    variables = module_params(stack, X)
    seen.clear()
    jax.eval_shape(lambda: stack.apply(variables, X))
    assert len(seen) == (4 if bidirectional else 2)
    assert all(settings.items() <= options.items() for options in seen)
    assert sum(options["reverse"] for options in seen) == (2 if bidirectional else 0)


@pytest.mark.parametrize(
    "layer",
    [
        Recurrent(LSTM(WIDTH, dtype=jnp.bfloat16)),
        Bidirectional(LearnedCarry(GRU(WIDTH)), merge="sum"),
        Stack((RNN(WIDTH), Zoneout(LSTM(WIDTH), c=0.1)), dropout=0.1),
        Embed(5, 3),
    ],
)
def test_copies_are_equal_layers(layer):
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin == layer and hash(twin) == hash(layer)


def test_an_empty_stack_is_refused(unchecked):
    with pytest.raises(ValueError, match="cells is empty"):
        Stack(()).init(jax.random.key(0), X)
    with pytest.raises(ValueError, match="cells is a single cell; give a tuple"):
        Stack(RNN(WIDTH)).init(jax.random.key(0), X)


@pytest.mark.parametrize("shape", [(3,), (1, 2, 5, 3)])
def test_inputs_are_rows_or_one_row(unchecked, shape):
    words = r"x has shape \([\d, ]+\); expected \[B, T, E\], or \[T, E\] of one row"
    with pytest.raises(ValueError, match=words):
        Recurrent(RNN(WIDTH)).init(jax.random.key(0), np.ones(shape, np.float32))


def test_parameters_go_by_name():
    """Flax itself draws what is missing, and leaves out what it does not know."""
    variables = module_params(Bidirectional(RNN(WIDTH)), X)["params"]
    more = {"forward": variables["forward"] | {"start": {}}, "backward": variables["backward"]}
    for given, words in ((more, "forward are .*'start'"), ({}, r"forward are \[\]; those of RNN")):
        with pytest.raises(ValueError, match=f"params of {words}"):
            Bidirectional(RNN(WIDTH)).apply({"params": given}, X)


def test_carries_of_other_layers_are_not_stacked(unchecked):
    h = np.zeros((BATCH, WIDTH), np.float32)
    for carry in (RNNCarry(h), {"forward": RNNCarry(h), "backward": RNNCarry(h)}):
        with pytest.raises(ValueError, match="carry is named .*; this layer's names are"):
            stack_carry(carry)
    with pytest.raises(ValueError, match="carry has tuple; this cell's has"):
        unstack_carry(TWO, (h, h))


def test_noise_of_a_cell_acts_in_training_only():
    layer = Recurrent(probes.Awkward(WIDTH))
    variables = module_params(layer, X)
    run = jit(lambda key: layer.apply(variables, X, train=True, rngs={"dropout": key})[0])
    quiet = apply(layer)(variables, X)[0]
    first, again, other = (np.asarray(run(jax.random.key(seed))) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3 and np.abs(first - quiet).max() > 1e-3
    with pytest.raises(Exception, match="dropout"):
        layer.apply(variables, X, train=True)
