"""Steps and seeds: what one update does, and what it leaves alone."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seqmodels import optim
from seqmodels.cells import RNN
from seqmodels.layers import Stack
from seqmodels.losses import squared_error
from seqmodels.models import SequenceClassifier
from seqmodels.tasks.adding import Adding
from seqmodels.training import seeds as parallel
from seqmodels.training.state import DIVERGED, RUNNING, SOLVED, init_state, stream
from seqmodels.training.step import Learner, train_step, train_steps
from seqmodels.types import Batch

pytestmark = pytest.mark.usefixtures("standard_promotion")  # optax mixes dtypes inside adam
LENGTH, BATCH = 6, 4
POISON = -7


ADAM = optim.make("adam", 1e-2, clip=1.0)


@functools.cache
def learner(**settings):
    defaults = {"optimizer": ADAM} | settings
    model = SequenceClassifier(Stack((RNN(5),)), 1, dropout=0.3)
    return Learner(model=model, loss=squared_error, metric=squared_error, **defaults)


def draw(key, ids, data):
    """Adding rows; NaN inputs where the first row id is POISON."""
    batch = Adding().sample(key, BATCH, LENGTH)
    if ids is None:
        return batch
    return batch._replace(inputs=jnp.where(ids[0] == POISON, jnp.nan, batch.inputs))


@functools.partial(jax.jit, static_argnums=0)
def fresh(learner, seed=0):
    batch = jax.eval_shape(lambda: Adding().sample(jax.random.key(0), BATCH, LENGTH))
    return init_state(
        learner,
        jax.random.key(seed),
        jnp.zeros(batch.inputs.shape),
        jnp.ones(batch.mask.shape, bool),
    )


def one_batch(step=0):
    return Adding().sample(stream(jax.random.key(0), "data", step), BATCH, LENGTH)


def assert_same(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if tolerance:
            np.testing.assert_allclose(_numbers(x), _numbers(y), **tolerance)
        else:
            np.testing.assert_array_equal(_numbers(x), _numbers(y))


def _numbers(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


STEP = jax.jit(train_step, static_argnums=0)
STEPS = jax.jit(train_steps, static_argnums=(0, 1))


def test_one_step_is_the_gradient_of_the_mean_loss():
    sgd = learner(optimizer=optim.make("sgd", 0.5))
    sgd = sgd._replace(model=sgd.model.clone(dropout=0.0))
    state, batch = fresh(sgd), one_batch()

    def loss(params):
        y, _ = sgd.model.apply({"params": params}, batch.inputs, mask=batch.mask)
        return jnp.mean(jnp.square(y - batch.targets))

    expected = jax.tree.map(lambda p, g: p - 0.5 * g, state.params, jax.grad(loss)(state.params))
    new, sums = STEP(sgd, state, batch)
    assert_same(new.params, expected, rtol=1e-5, atol=1e-7)
    assert float(sums["loss"] / sums["weight"]) == pytest.approx(
        float(loss(state.params)), rel=1e-5
    )
    assert float(sums["weight"]) == BATCH
    norm = optax.tree.norm(jax.grad(loss)(state.params))
    assert float(sums["grad_norm"]) == pytest.approx(float(norm), rel=1e-5)


def test_many_steps_in_one_call_are_the_same_steps():
    net = learner(weight_noise=0.1)
    once, sums = STEPS(net, draw, fresh(net), jnp.int32(5), None, None)
    state, total = fresh(net), 0.0
    for count in (2, 0, 1, 2):  # any borders, an empty call among them
        state, part = STEPS(net, draw, state, jnp.int32(count), None, None)
        total += float(part["loss"])
    assert int(once.step) == 5
    assert_same(once, state)
    assert float(sums["loss"]) == pytest.approx(total, rel=1e-6)


def test_data_dropout_and_noise_depend_on_seed_and_step_alone():
    net = learner(weight_noise=0.1)
    a, _ = STEPS(net, draw, fresh(net), jnp.int32(3), None, None)
    b, _ = STEPS(net, draw, fresh(net), jnp.int32(3), None, None)
    assert_same(a, b)
    state, batch = fresh(net), one_batch()
    losses = [float(STEP(net, state.replace(step=jnp.int32(n)), batch)[1]["loss"]) for n in (0, 1)]
    assert losses[0] != losses[1]  # other dropout and noise on the same batch
    assert not np.array_equal(one_batch(0).inputs, one_batch(1).inputs)


def test_weight_noise_is_in_the_gradient_and_not_in_the_parameters():
    quiet = learner(optimizer=optim.make("sgd", 0.0))
    noisy = quiet._replace(weight_noise=0.5)
    state = fresh(quiet)
    new, sums = STEP(noisy, state, one_batch())
    assert_same(new.params, state.params)
    assert float(sums["loss"]) != float(STEP(quiet, state, one_batch())[1]["loss"])


@pytest.mark.parametrize("allowed", [1, 3])
def test_D02_non_finite_step_changes_nothing_and_is_counted(allowed):
    net = learner(max_bad_steps=allowed)
    before, _ = STEPS(net, draw, fresh(net), jnp.int32(2), None, None)
    bad = one_batch()._replace(inputs=jnp.full((BATCH, LENGTH, 2), jnp.nan))
    after, sums = STEP(net, before, bad)
    assert_same(
        (after.params, after.opt_state, after.key), (before.params, before.opt_state, before.key)
    )
    assert (int(after.step), int(after.bad_steps)) == (3, 1)
    assert int(after.status) == (DIVERGED if allowed == 1 else RUNNING)
    assert all(np.all(np.asarray(value) == 0) for value in sums.values())
    assert int(optim.applied(after.opt_state)) == 2  # what the rate of the next one counts
    good, _ = STEP(net, after, one_batch())
    assert int(good.bad_steps) == 0


def test_D02_huge_gradient_is_clipped_not_skipped():
    net = learner(optimizer=optim.make("sgd", 1.0, clip=1.0))
    state, batch = fresh(net), one_batch()
    huge = batch._replace(
        targets=jnp.full((BATCH, 1), 1.5e19), weights=jnp.zeros(BATCH).at[0].set(1.0)
    )
    new, sums = STEP(net, state, huge)
    moved = jax.tree.map(jnp.subtract, new.params, state.params)
    assert float(optax.tree.norm(moved)) == pytest.approx(1.0, rel=1e-4)
    assert float(sums["grad_norm"]) > 1e19  # its square is beyond float32
    assert int(new.status) == RUNNING


def test_D02_moment_that_overflows_is_a_bad_step():
    """Unclipped, a finite gradient of 3e19 has an infinite square: adam would never move again."""
    net = learner(optimizer=optim.make("adam", 1e-2))
    state, batch = fresh(net), one_batch()
    huge = batch._replace(
        targets=jnp.full((BATCH, 1), 1.5e19), weights=jnp.zeros(BATCH).at[0].set(1.0)
    )
    new, _ = STEP(net, state, huge)
    assert_same((new.params, new.opt_state), (state.params, state.opt_state))
    assert int(new.status) == DIVERGED


def test_without_a_moving_average_the_parameters_are_tried():
    state = fresh(learner())
    assert state.average is None and state.tried is state.params


class Growing(nn.Module):
    """A memory that no output shows, as that of a cell which squashes it first."""

    @nn.compact
    def __call__(self, x, carry, *, mask=None, reset=None, train=False):
        return nn.Dense(1)(x), {"c": carry["c"] * 1e30}


def test_D03_carry_that_overflows_unseen_is_a_bad_step():
    """1e20 times 1e30 is beyond float32, though loss and gradient are finite."""
    net = Learner(Growing(), optim.make("sgd", 0.1), squared_error, squared_error, max_bad_steps=2)
    x, weights = jnp.ones((1, 3, 1)), jnp.array([[1.0, 0.0, 0.0]])
    batch = Batch(x, x, jnp.ones((1, 3), bool), weights, jnp.zeros((1, 3), bool))
    params = {"Dense_0": {"kernel": jnp.ones((1, 1)), "bias": jnp.zeros(1)}}
    for memory, bad in ((1.0, 0), (1e20, 1)):
        state = fresh(learner()).replace(
            params=params,
            opt_state=net.optimizer.init(params),
            carry={"c": jnp.full((1, 1), memory)},
        )
        new, sums = STEP(net, state, batch)
        assert (int(new.bad_steps), int(new.status), float(sums["steps"])) == (
            bad,
            RUNNING,
            1 - bad,
        )
        if bad:
            assert_same((new.params, new.carry), (state.params, state.carry))


def test_L04_batch_without_scored_terms_changes_nothing():
    net = learner(max_bad_steps=3)
    before, _ = STEPS(net, draw, fresh(net), jnp.int32(3), None, None)
    empty = one_batch()._replace(weights=jnp.zeros(BATCH), targets=jnp.full((BATCH, 1), jnp.nan))
    for bad in (0, 1):  # such a step is neither good nor bad
        before = before.replace(bad_steps=jnp.int32(bad))
        after, sums = STEP(net, before, empty)
        assert_same((after.params, after.opt_state), (before.params, before.opt_state))
        assert (int(after.bad_steps), int(after.status)) == (bad, RUNNING)
    assert float(sums["weight"]) == 0 and float(sums["steps"]) == 0


def test_seeds_together_equal_each_alone_and_stopped_ones_stand_still():
    net = learner()
    mesh = parallel.seed_mesh(2)
    assert mesh.shape["seed"] == 2, "the tests ask for two CPU devices"
    seeds = jnp.arange(4)
    status = jnp.array([RUNNING, SOLVED, RUNNING, RUNNING], jnp.int32)
    ids = jnp.zeros((4, 3, 1, BATCH), jnp.int32).at[3, 1].set(POISON)

    def initial(shared, seed, status):
        return fresh(net, seed).replace(status=status)

    def train(shared, state, ids):
        return train_steps(net, draw, state, shared, ids, None)

    states = jax.jit(parallel.for_each_seed(initial, mesh))((), seeds, status)
    first = jax.tree.map(jnp.copy, states)
    states, sums = jax.jit(parallel.for_each_seed(train, mesh))(jnp.int32(3), states, ids)

    assert states.status.tolist() == [RUNNING, SOLVED, RUNNING, DIVERGED]
    assert states.step.tolist() == [3, 0, 3, 2]  # the poisoned seed left the loop at once
    assert sums["steps"].tolist() == [3.0, 0.0, 3.0, 1.0]
    rows = jax.tree.map(lambda leaf: leaf[1], (first, states))
    assert_same(rows[0].params, rows[1].params)
    for i in (0, 2):
        alone, _ = STEPS(net, draw, fresh(net, i), jnp.int32(3), ids[i], None)
        together = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        assert_same(together.params, alone.params, rtol=1e-6, atol=1e-7)


def test_padded_seed_count_fills_every_device():
    mesh = parallel.seed_mesh(3)
    devices = mesh.shape["seed"]
    assert [parallel.padded(n, mesh) % devices for n in range(1, 6)] == [0] * 5
    assert parallel.padded(3, mesh) >= 3
