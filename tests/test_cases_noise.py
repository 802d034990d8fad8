"""Cases of dropout and randomness (E01 to E05), for the noise of cells and between layers.

Most masks are read off probe cells whose output shows them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
import table
from table import KEY, TABLE, apply, assert_close, jit, noise_key

from seqmodels import losses, recurrence
from seqmodels.cells import RNN, Cell, LearnedCarry, Zoneout
from seqmodels.initializers import Normal
from seqmodels.layers import Bidirectional, Recurrent, Stack
from seqmodels.models import SequenceLabeller
from seqmodels.training.state import init_state, stream
from seqmodels.training.step import Learner, eval_step, train_step
from seqmodels.types import Batch

BATCH, STEPS, WIDTH = 4, 50, 64
ONES = np.ones((BATCH, STEPS, 1), np.float32)
CLOCK = np.cumsum(ONES, axis=1)  # 1, 2, 3, ... over time
SMALL = {"input_init": Normal(0.4), "recurrent_init": Normal(0.4)}  # quick to draw


def weights(w, b, u):
    """Of a cell of one gate that reads w x + b + u h, unit by unit."""
    params = {
        "input": {"kernel": np.full((1, WIDTH), w), "bias": np.full(WIDTH, b)},
        "recurrent": {"kernel": u * np.eye(WIDTH)},
    }
    return jax.tree.map(np.float32, params)


def candidate_masks(y):
    """h' = drop(1): a unit shows 2 where it stayed, 0 where it fell."""
    assert set(np.unique(y)) == {0.0, 2.0}
    return y > 0


def hidden_masks(y):
    """h' = 1 + drop(h) / 4, which is above 1 where h stayed."""
    assert np.all(y[:, 0] == 1)
    np.testing.assert_allclose(y[:, 1:], np.where(y[:, 1:] > 1, 1 + y[:, :-1] / 2, 1), rtol=1e-6)
    return y[:, 1:] > 1


def kept_values(y):
    """h' = t, or still the number it was."""
    before = np.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    assert np.all((y == CLOCK) | (y == before))
    return y != CLOCK


def plain(**options):
    return RNN(WIDTH, activation="relu", **options)


# (cell, parameters, inputs, how its output shows the masks)
PER_SEQUENCE = {
    "candidate": (plain(candidate_dropout=0.5), weights(0, 1, 0), ONES, candidate_masks),
    "hidden": (plain(hidden_dropout=0.5), weights(0, 1, 0.25), ONES, hidden_masks),
}
PER_STEP = {
    "candidate": (
        plain(candidate_dropout=0.5, dropout_per_step=True),
        weights(0, 1, 0),
        ONES,
        candidate_masks,
    ),
    "hidden": (
        plain(hidden_dropout=0.5, dropout_per_step=True),
        weights(0, 1, 0.25),
        ONES,
        hidden_masks,
    ),
    "zoneout": (Zoneout(plain(), h=0.5), weights(1, 0, 0), CLOCK, kept_values),
}


def masks(probe, seed):
    cell, params, x, shown = probe
    return shown(np.asarray(jit(recurrence.run, static_argnums=0)(cell, params, x, key=seed)[0]))


def assert_different(a, b):
    """As two draws of rate 0.5 are: half of their flags differ."""
    assert abs(np.mean(a != b) - 0.5) < 0.25


@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_E01_one_mask_for_the_sequence(name):
    seen = masks(PER_SEQUENCE[name], noise_key(0))
    np.testing.assert_array_equal(seen, np.broadcast_to(seen[:, :1], seen.shape))
    assert_different(seen[0, 0], seen[1, 0])


@pytest.mark.parametrize("name", PER_STEP)
def test_E01_a_mask_for_each_step(name):
    seen = masks(PER_STEP[name], noise_key(0))
    assert abs(seen.mean() - 0.5) < 0.1
    assert_different(seen[:, 1:], seen[:, :-1])
    assert_different(seen[0], seen[1])
    assert np.abs(seen.mean(axis=1) - 0.5).max() < 0.4, "some unit always stays or falls"


@pytest.mark.parametrize("per_step", [True, False])
@pytest.mark.parametrize("time_major", [True, False])
def test_E01_between_layers(per_step, time_major):
    """Two running sums: the first shows 1, 2, 3 ..., the second adds up what gets through."""
    options = {"dropout_per_step": per_step, "time_major": time_major}
    stack = Stack((probes.RunningSum(WIDTH),) * 2, dropout=0.5, **options)
    x = np.repeat(ONES, WIDTH, axis=2)
    run = jit(lambda x, key: stack.apply({}, x, train=True, rngs={"dropout": key})[0])
    y = np.asarray(run(x.swapaxes(0, 1) if time_major else x, noise_key(0)))
    y = y.swapaxes(0, 1) if time_major else y
    seen = np.diff(y, axis=1, prepend=0) / (2 * CLOCK)
    assert set(np.unique(seen)) == {0, 1}
    assert_different(seen[0, 0], seen[1, 0])
    if per_step:
        assert_different(seen[:, 1:], seen[:, :-1])
    else:
        np.testing.assert_array_equal(seen, np.broadcast_to(seen[:, :1], seen.shape))


@pytest.mark.parametrize("probe", [*PER_SEQUENCE.values(), *PER_STEP.values()])
def test_E02_another_mask_for_each_row_and_each_call(probe):
    first, second = (masks(probe, stream(KEY, "dropout", step)) for step in (1, 2))
    rows = [*first, *second]
    for i, row in enumerate(rows):
        for other in rows[:i]:
            assert_different(row, other)
    np.testing.assert_array_equal(first, masks(probe, stream(KEY, "dropout", 1)))


def test_E02_another_mask_for_each_layer_and_direction():
    cell, params, _, shown = PER_SEQUENCE["candidate"]
    layer = Bidirectional(cell, merge="concat")
    variables = {"params": {"forward": params, "backward": params}}
    run = jit(lambda key: layer.apply(variables, ONES, train=True, rngs={"dropout": key})[0])
    forward, backward = np.split(shown(np.asarray(run(noise_key(0)))), 2, axis=-1)
    assert_different(forward[:, 0], backward[:, 0])

    wide = {**params, "input": {**params["input"], "kernel": np.zeros((WIDTH, WIDTH), np.float32)}}
    stack, seen = Stack((cell, cell)), []
    variables = {"params": {"layer_0": params, "layer_1": wide}}
    run = jit(lambda key: stack.apply(variables, ONES, train=True, rngs={"dropout": key})[1])
    final = run(noise_key(0))
    seen = [np.asarray(final[name].h) > 0 for name in ("layer_0", "layer_1")]
    assert_different(*seen)


@table.cells()
def test_E02_what_a_cell_draws(cell):
    """Flags in the places and at the rates that its settings say; no two of them from one draw."""
    rows, steps = 24, 20
    noise = jit(lambda: cell.noise(KEY, rows, steps))()
    if not cell.stochastic:
        assert noise is None
        return
    expected = rates_of(cell)
    drawn = {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(noise)
    }
    assert set(drawn) == set(expected)
    for name, leaf in drawn.items():
        rate, axes, width = expected[name]
        assert leaf.dtype == bool
        assert leaf.shape == ((steps,) if axes == "TB" else ()) + (rows, width), name
        deviation = (rate * (1 - rate) / leaf.size) ** 0.5
        assert abs(leaf.mean() - rate) < 4 * deviation, name
    for name, leaf in drawn.items():
        for other, second in drawn.items():
            if name < other and leaf.ndim == second.ndim:
                width = min(leaf.shape[-1], second.shape[-1])
                a, b = leaf[..., :width], second[..., :width]
                p, q = a.mean(), b.mean()
                both = abs((a & b).mean() - p * q)
                assert both < 5 * (p * q * (1 - p * q) / a.size) ** 0.5, (name, other)


def rates_of(cell, prefix=""):
    """{path in the noise: (probability of True, axes, width)}."""
    if isinstance(cell, LearnedCarry):
        return rates_of(cell.cell, prefix)
    if isinstance(cell, Zoneout):
        carry = cell.initial_carry(cell.init(KEY, 1), 1)
        own = {
            f".step['zoneout']['{name}']": (rate, "TB", getattr(carry, name).shape[-1])
            for name, rate in cell.rates.items()
        }
        return own | rates_of(cell.cell, "['cell']")
    where, axes = (".step" + prefix, "TB") if cell.dropout_per_step else (".sequence", "B")
    widths = {"hidden": cell.out_features, "candidate": cell.features}
    return {
        f"{where}['{name}']": (1 - getattr(cell, f"{name}_dropout"), axes, width)
        for name, width in widths.items()
        if getattr(cell, f"{name}_dropout")
    }


@table.cells()
def test_a_cell_says_whether_it_draws(cell):
    """`stochastic` is what a training pass goes by to ask for a key."""
    assert cell.stochastic == (jax.eval_shape(lambda: cell.noise(KEY, 2, 3)) is not None)


def test_a_cell_of_ones_own_says_it_by_having_noise():
    assert probes.Awkward(2).stochastic and not probes.RunningSum(2).stochastic
    assert not Cell(2).stochastic


# Training -----------------------------------------------------------------------------------------

NOISY = (
    RNN(6, hidden_dropout=0.3, **SMALL),
    Zoneout(RNN(6, candidate_dropout=0.3, dropout_per_step=True, **SMALL), h=0.2),
)
MODEL = SequenceLabeller(Stack(NOISY, dropout=0.3, dropout_per_step=False), 1)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 3)).astype(np.float32)
ROWS = Batch(X, X[:, :, :1], np.ones((2, 5), bool), np.ones((2, 5), np.float32))


LEARNER = Learner(MODEL, optax.sgd(0.0), losses.squared_error, losses.squared_error)
STEP = jit(lambda state: train_step(LEARNER, state, ROWS))
INIT = jit(lambda: init_state(LEARNER, KEY, jnp.asarray(X), jnp.asarray(ROWS.mask)))


def trained(state, steps):
    """The state after some steps of rate 0, and what each of them saw as its loss."""
    seen = []
    for _ in range(steps):
        state, sums = STEP(state)
        seen.append(float(sums["loss"]))
    return state, seen


def test_E03_masks_depend_on_the_step_and_a_resumed_run_draws_the_same():
    """Nothing is learned, so that the loss is a hash of the masks."""
    state, straight = trained(INIT(), 4)
    assert len(set(straight)) == 4, "two steps drew the same masks"
    assert trained(INIT(), 4)[1] == straight
    half, first = trained(INIT(), 2)
    stored = jax.device_get(half.replace(key=jax.random.key_data(half.key)))  # as on disk
    resumed = stored.replace(key=jax.random.wrap_key_data(stored.key, impl="unsafe_rbg"))
    assert first + trained(resumed, 2)[1] == straight
    assert_close(state.params, INIT().params, 0)


def test_E04_evaluation_is_quiet_and_training_after_it_is_not():
    state = INIT()
    evaluate = jit(lambda params: eval_step(LEARNER, params, ROWS))
    (one, _), (two, _) = evaluate(state.params), evaluate(state.params)
    assert float(one["loss"]) == float(two["loss"])
    state, before = trained(state, 1)
    assert float(evaluate(state.params)[0]["loss"]) == float(one["loss"])
    _, after = trained(state, 2)
    assert len({float(one["loss"]), *before, *after}) == 4


@pytest.mark.parametrize("cell", NOISY)
def test_E04_training_without_a_key_is_an_error(cell):
    layer = Recurrent(cell)
    variables = jit(layer.init)(KEY, X)
    with pytest.raises(Exception, match="dropout"):
        layer.apply(variables, X, train=True)
    assert layer.stochastic and not Recurrent(RNN(2)).stochastic
    Recurrent(RNN(6, **SMALL)).apply(variables, X, train=True)  # nothing to draw, no key


def test_E05_the_dropout_of_a_cell_acts_with_one_layer():
    layer = Stack((RNN(6, candidate_dropout=0.9, **SMALL),))
    variables = jit(layer.init)(KEY, X)
    runs = [apply(layer)(variables, X, train=True, rngs={"dropout": noise_key(n)}) for n in (0, 1)]
    quiet, _ = apply(layer)(variables, X)
    assert np.mean(np.asarray(runs[0][0]) == 0) > 0.6 and not np.any(np.asarray(quiet) == 0)
    assert np.any(runs[0][0] != runs[1][0])


def test_F05_the_contract_runs_on_parameters_that_are_not_zero():
    for name, entry in TABLE.items():
        params = table.params_of(entry.cell)
        assert all(np.abs(leaf).min() > 0 for leaf in jax.tree.leaves(params)), name
        assert all(np.ptp(leaf) > 0 for leaf in jax.tree.leaves(params)), name
