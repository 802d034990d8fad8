"""What runs on the devices: every program of a run, compiled before the first step."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from experiments.build import Run
from experiments.memory import need_for_program
from experiments.signals import Stop
from experiments.sources import Part, example, zeros
from seqmodels.training import seeds as parallel
from seqmodels.training.selection import judge
from seqmodels.training.state import RUNNING, UNUSED, TrainState, empty_carry, init_state
from seqmodels.training.step import eval_steps, train_steps


class Programs(NamedTuple):
    """Each serves all seeds at once; leaves of states, ids and sums are [S, ...]."""

    start: Any  # () -> state before the first step
    like: TrainState  # shapes of it
    train: dict[Any, Any]  # by shape: (steps, state, ids) -> state, sums
    evaluate: Any  # (part, params, keys, active, carry) -> sums, carry
    carry: Any  # before the first part, zeros; None where batches are unrelated
    judge: Any  # (state, scores) -> state
    seconds: float  # that compiling took


def compile_all(run: Run, seeds: np.ndarray, used: np.ndarray, mesh: Mesh, stop: Stop) -> Programs:
    """The compiled calls for `seeds`, of which only those in `used` ever run.

    Programs are compiled side by side: the compiler leaves Python's lock and has the cores to
    itself, and the first start spends more time here than anywhere else.
    """
    began = time.perf_counter()
    learner, source = run.learner, run.source

    def initial(shared, seed, used):
        rows = mesh.shape["data"]  # batches and carries are filled up to a multiple
        inputs, mask = (parallel.pad_rows(leaf, rows) for leaf in zeros(example(source)))
        state = init_state(learner, jax.random.key(seed), inputs, mask, source.carried)
        return state.replace(status=jnp.where(used, RUNNING, UNUSED).astype(jnp.int32))

    def train(shape):
        def call(shared, state, ids):
            steps, data = shared
            draw = parallel.over_devices(source.draw(shape), mesh)
            return train_steps(learner, draw, state, steps, ids, data)

        return call

    def evaluation(shape):
        def call(shared, params, key, active, carry):
            batches, ids, data = shared
            batches = jnp.where(active, batches, 0)  # a seed that is not asked for costs nothing
            draw = parallel.over_devices(source.eval_draw(shape), mesh)
            return eval_steps(learner, draw, params, key, batches, ids, data, carry)

        return call

    def compiled(function, shared, *own, donate=()):
        program = jax.jit(
            parallel.for_each_seed(function, mesh),
            donate_argnums=donate,
            out_shardings=parallel.by_seed(mesh),
        )
        ready = program.lower(shared, *own).compile()
        need_for_program(ready, f"one call of {function.__name__}", mesh.devices.size)
        return ready

    def judged(shared, state, score):
        assert learner.selection is not None
        return judge(learner.selection, state, score)

    data = parallel.replicate(source.data, mesh)
    like = jax.eval_shape(parallel.for_each_seed(initial, mesh), (), seeds, used)
    state = parallel.typed(like, mesh)
    one = jnp.int32(1)
    carry = _eval_carry(run, like.params, mesh) if source.carried else None
    tried = (state.tried, state.key, used, carry)
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(compiled, initial, (), seeds, used)
        training = {
            shape: pool.submit(
                compiled, train(shape), (one, data), state, feed(run, seeds, 0, shape), donate=1
            )
            for shape in source.shapes()
        }
        scoring = {
            part.shape: pool.submit(
                compiled,
                evaluation(part.shape),
                (one, part.ids, data),
                *tried,
            )
            for part in _one_of_each(run)
        }
        pending = [starting, *training.values(), *scoring.values()]
        while not all(future.done() for future in pending):
            time.sleep(0.02)
            if stop.number is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                stop.check()

        start = starting.result()
        steps = {shape: future.result() for shape, future in training.items()}
        scores = {shape: future.result() for shape, future in scoring.items()}

    def evaluate(part: Part, params, keys, active, carry):
        shared = (jnp.int32(part.batches), part.ids, data)
        return scores[part.shape](shared, params, keys, active, carry)

    return Programs(
        start=lambda: start((), seeds, used),
        like=like,
        train={
            shape: lambda n, state, ids, program=program: program((n, data), state, ids)
            for shape, program in steps.items()
        },
        evaluate=evaluate,
        carry=carry,
        judge=jax.jit(lambda state, score: parallel.for_each_seed(judged, mesh)((), state, score)),
        seconds=time.perf_counter() - began,
    )


def feed(run: Run, seeds: np.ndarray, start: int, shape: Any = None, stop: int | None = None):
    """Ids of the steps start..stop-1 for all seeds, [S, K, ...], filled up to the K steps that a
    call takes at most.

    Without `stop`, those of one step: for shapes alone.
    """
    stop = start + 1 if stop is None else stop
    rows = [run.source.ids(int(seed), start, stop) for seed in seeds]
    missing = min(run.steps_per_call, run.eval_every, run.steps) - (stop - start)

    def fill(*leaves):
        whole = np.stack(leaves)
        return np.pad(whole, [(0, 0), (0, missing)] + [(0, 0)] * (whole.ndim - 2))

    return jax.tree.map(fill, *rows)


def _one_of_each(run: Run) -> list[Part]:
    """One part of each shape that is ever evaluated."""
    source = run.source
    found: dict[Any, Part] = {}
    for asked in (("valid", None), *(("test", length) for length in source.lengths)):
        for part in source.parts(*asked):
            found.setdefault(part.shape, part)
            if source.carried:  # all of one shape, and many
                break
    return [*found.values()]


def _eval_carry(run: Run, params: Any, mesh: Mesh) -> Any:
    """Zeros in the shape of the carry of one evaluated batch, for each seed."""
    part = _one_of_each(run)[0]
    ids = jax.tree.map(lambda leaf: leaf[0], part.ids)
    draw = run.source.eval_draw(part.shape)
    inputs = jax.eval_shape(draw, jax.random.key(0), ids, run.source.data).inputs
    inputs = jax.eval_shape(lambda x: parallel.pad_rows(x, mesh.shape["data"]), inputs)
    of_seed = jax.vmap(lambda params: empty_carry(run.learner.model, params, inputs))
    shapes = jax.eval_shape(of_seed, params)
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return parallel.shard(blank, mesh)
