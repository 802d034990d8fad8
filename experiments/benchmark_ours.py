"""This project in `experiments.benchmark`: its own training step, as its experiments run it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

RATE = 1e-3
FORWARD_ROWS = 16  # a device, at least, for the forward pass alone to be spread over devices
STEPS_PER_CALL = 16  # of this project, whose experiments take up to 50; others' users write one


class Problem(NamedTuple):
    cell: str  # rnn, lstm, gru
    features: int  # H
    x: np.ndarray  # [B, T, E]
    target: np.ndarray  # [B, 1]
    lengths: np.ndarray | None  # int32 [B]


class Contender(NamedTuple):
    """Both run to the end, results awaited."""

    forward: Callable[[], Any]
    train: Callable[[], Any]
    steps: int = 1  # training steps in one call of `train`
    note: str = ""  # what serves it, and where it differs


def seqmodels(problem: Problem) -> Contender:
    import jax
    import optax

    from seqmodels import cells, layers, losses, recurrence
    from seqmodels.models import SequenceClassifier
    from seqmodels.training import seeds
    from seqmodels.training.state import init_state
    from seqmodels.training.step import Learner, train_steps
    from seqmodels.types import Batch

    cell = cells.CELLS[problem.cell](problem.features)
    learner = Learner(
        SequenceClassifier(layers.Stack((cell,)), 1),
        optax.adam(RATE),
        losses.squared_error,
        losses.squared_error,
    )
    rows, length = problem.x.shape[:2]
    lengths = np.full(rows, length) if problem.lengths is None else problem.lengths
    mask = np.arange(length) < lengths[:, None]
    batch = Batch(problem.x, problem.target, mask, np.ones(rows, np.float32))
    mesh = seeds.seed_mesh(1, len(jax.local_devices()))

    def start(shared, seed):
        x, real = jax.numpy.asarray(problem.x), jax.numpy.asarray(mask)
        return init_state(learner, jax.random.key(seed), x, real)

    def call(shared, state, ids):
        steps, data = shared
        draw = seeds.over_devices(lambda key, ids, data: data, mesh)
        return train_steps(learner, draw, state, steps, ids, data)

    data = seeds.replicate(batch, mesh)
    state = [jax.jit(seeds.for_each_seed(start, mesh))((), np.zeros(1, np.uint32))]
    program = jax.jit(
        seeds.for_each_seed(call, mesh), donate_argnums=1, out_shardings=seeds.by_seed(mesh)
    )

    def train():
        state[0], sums = program((np.int32(STEPS_PER_CALL), data), state[0], None)
        return jax.block_until_ready(sums)

    # A device with few rows reads the whole kernel for little work: then one, with all threads.
    spread = rows >= FORWARD_ROWS * mesh.shape["data"]
    by_rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    place = by_rows if spread else jax.local_devices()[0]
    x = jax.device_put(problem.x, place)
    own = None if problem.lengths is None else jax.device_put(problem.lengths, place)
    params = cell.init(jax.random.key(0), problem.x.shape[-1])

    @jax.jit
    def apply(params, x, lengths):
        return recurrence.run(cell, params, x, lengths=lengths)[0]

    def forward():
        return jax.block_until_ready(apply(params, x, own))

    note = f"{recurrence.choose(cell)}, batch over {mesh.shape['data']} devices"
    note += "" if spread else ", forward on one"
    return Contender(forward, train, STEPS_PER_CALL, note)
