"""A batch shared by devices: the same draws, the same update, whatever their number."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments import build, cli
from seqmodels import optim
from seqmodels.cells import LSTM, Zoneout
from seqmodels.data.epochs import Epochs
from seqmodels.layers import Embed, Stack
from seqmodels.losses import cross_entropy
from seqmodels.models import SequenceLabeller
from seqmodels.training import seeds as parallel
from seqmodels.training.state import init_state
from seqmodels.training.step import Learner, train_steps
from seqmodels.types import Batch

pytestmark = pytest.mark.usefixtures("standard_promotion")  # optax mixes dtypes inside adam
STEPS, SYMBOLS = 6, 7
RNG = np.random.default_rng(0)
NOISY = Zoneout(LSTM(4, hidden_dropout=0.3, dropout_per_step=True), c=0.2)
MODEL = SequenceLabeller(Stack((LSTM(4),)), SYMBOLS, Embed(SYMBOLS, 3))


def ragged(rows):
    """Batches [2, rows, STEPS] of rows of all lengths, an empty one among them, with resets."""
    ids = RNG.integers(1, SYMBOLS, size=(2, rows, STEPS)).astype(np.int32)
    lengths = np.stack([RNG.permutation(rows) % (STEPS + 1) for _ in range(2)])
    mask = np.arange(STEPS) < lengths[..., None]
    reset = RNG.random((2, rows, STEPS)) < 0.2
    return Batch(ids, ids[..., ::-1].copy(), mask, mask.astype(np.float32), reset)


def learner(**settings):
    model = MODEL.clone(dropout=0.3)
    defaults = {"optimizer": optim.make("adam", 0.01, clip=0.05), "loss": cross_entropy}
    return Learner(model=model, metric=cross_entropy, clip=0.05, **defaults | settings)


def two_updates(net, batches, shards, carried=False):
    """One seed's state and sums after two updates, with each batch on `shards` devices."""
    mesh = parallel.seed_mesh(1, shards)
    assert mesh.shape["data"] == shards
    rows = batches.inputs.shape[1]
    inputs, mask = (
        parallel.pad_rows(jnp.asarray(leaf[0]), shards) for leaf in (batches.inputs, batches.mask)
    )

    def initial(shared, seed):
        return init_state(net, jax.random.key(seed), inputs, mask, carried)

    def train(shared, state):
        def draw(key, ids, data):
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[ids], batches)

        draw = parallel.over_devices(draw, mesh)
        ids = jnp.arange(2, dtype=jnp.int32)[:, None]
        return train_steps(net, draw, state, jnp.int32(2), ids, None)

    jit = functools.partial(jax.jit, out_shardings=parallel.by_seed(mesh))
    state = jit(parallel.for_each_seed(initial, mesh))((), jnp.zeros(1, jnp.int32))
    state, sums = jit(parallel.for_each_seed(train, mesh))((), state)
    carry = jax.tree.map(lambda leaf: leaf[:, :rows], state.carry)
    return jax.device_get((state.params, state.opt_state, carry, sums))


@pytest.mark.parametrize(
    "rows, carried, cell",
    [
        pytest.param(5, False, LSTM(4), id="rows, do not divide"),
        pytest.param(5, False, NOISY, id="noise, does not divide", marks=pytest.mark.slow),
        pytest.param(6, True, LSTM(4), id="stream, divides", marks=pytest.mark.slow),
    ],
)
def test_O02_O04_one_update_is_the_same_on_two_devices(rows, carried, cell):
    """Lengths and resets travel with their rows, dropout and zoneout draw the same masks, and
    clipping sees the whole gradient."""
    batches, net = ragged(rows), learner()
    net = net._replace(model=net.model.clone(stack=Stack((cell,))))
    one, two = (two_updates(net, batches, shards, carried) for shards in (1, 2))
    for sums in (one[3], two[3]):
        assert sums["clipped"].item() == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), one, two)


def test_O03_shares_of_145_rows_make_the_same_number_of_steps():
    """Three processes that each take their third of every batch of 48: none runs out first."""
    epochs = Epochs({5: np.arange(145)}, 48)
    seen = [[], [], []]
    for step in range(epochs.per_epoch):
        for process, share in enumerate(np.split(epochs.ids(0, step), 3)):
            assert len(share) == 16  # filled with rows that are not there
            seen[process].extend(share[share >= 0].tolist())
    assert epochs.per_epoch == 4
    assert sorted(sum(seen, [])) == list(range(145))


@pytest.mark.parametrize(
    "devices, seeds, batch, shares",
    [(2, 1, 32, 2), (2, 1, 15, 1), (2, 3, 32, 1), (8, 3, 32, 2), (8, 1, 32, 4), (1, 1, 64, 1)],
)
def test_devices_that_seeds_leave_over_share_batches(devices, seeds, batch, shares, monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: [None] * devices)
    assert build.shares(ConfigDict({"seeds": seeds, "batch": batch})) == shares


@pytest.mark.parametrize(
    "given, devices", [([(1, None)], 4), ([(3, None)], 3), ([(1, 2)], 2), ([(1, 1), (5, None)], 5)]
)
def test_there_are_as_many_devices_as_the_largest_run_fills(given, devices, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    asked = {}
    monkeypatch.setattr(jax.config, "update", asked.__setitem__)
    cli.use_cores(*(ConfigDict({"seeds": seeds, "shards": shards}) for seeds, shards in given))
    assert asked == {"jax_num_cpu_devices": devices}
