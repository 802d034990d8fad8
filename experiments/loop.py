"""Runs one config: all its seeds in one program, from compilation to the last test row."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from experiments.build import Run
from experiments.progress import Reporter
from experiments.results import Results
from experiments.sources import example, zeros
from seqmodels.metrics import mean
from seqmodels.training import seeds as parallel
from seqmodels.training.state import (
    DIVERGED,
    RUNNING,
    SOLVED,
    UNUSED,
    TrainState,
    init_state,
    stream,
)
from seqmodels.training.step import Sums, eval_steps, train_steps
from seqmodels.types import Batch


class Programs(NamedTuple):
    """What runs on the devices, compiled; each serves all seeds at once."""

    state: TrainState  # before the first step, leaves [S, ...]
    data: Batch | None
    train: Any
    evaluate: dict[Any, Any]  # by what is drawn, `Source.drawn_at`
    seconds: float


def train_and_test(run: Run, seeds: tuple[int, ...], results: Results, show: Reporter) -> None:
    """Trains and tests `seeds`, writing rows as they come."""
    mesh = parallel.seed_mesh(len(seeds))
    every = np.resize(seeds, parallel.padded(len(seeds), mesh))  # the surplus never runs
    programs = compile_all(run, every, np.arange(len(every)) < len(seeds), mesh)
    state = programs.state
    steps_to_solve: list[int | None] = [None] * len(every)
    began = time.perf_counter()

    # Call borders depend on the step number alone, so any two runs of a config share them.
    for start in range(0, run.steps, run.eval_every):
        step = min(start + run.eval_every, run.steps)
        ids = _train_ids(run, every, start)
        state, sums = programs.train((jnp.int32(step - start), programs.data), state, ids)
        trained = _by_seed(sums, len(seeds))
        elapsed = time.perf_counter() - began
        for i, one in trained:
            if one["steps"]:
                results.write(
                    "train",
                    seeds[i],
                    step=step,
                    loss=one["loss"] / one["weight"],
                    score=one["metric"] / one["weight"],
                    grad_norm=one["grad_norm"] / one["steps"],
                    seconds=round(elapsed, 3),
                )

        active = np.asarray(state.status) == RUNNING
        scores = {}
        for i, one in _evaluate(run, programs, state, active, "valid").items():
            scores[i] = mean(one["metric"], one["weight"])
            results.write("valid", seeds[i], step=step, **_averages(one))
        solved = np.zeros_like(active)
        for i, score in scores.items():
            solved[i] = run.solves(score) and steps_to_solve[i] is None
        if solved.any() and run.source.confirms:
            for i, one in _evaluate(run, programs, state, solved, "confirm", step).items():
                solved[i] = run.solves(mean(one["metric"], one["weight"]))
        for i in np.flatnonzero(solved).tolist():
            steps_to_solve[i] = step
        if run.stop_when_solved and solved.any():
            status = np.where(solved, SOLVED, state.status).astype(np.int32)
            state = state.replace(status=parallel.shard(status, mesh))

        show.update(step, " ".join([run.metric, *(f"{s:.4g}" for s in scores.values())]))
        if not (np.asarray(state.status) == RUNNING).any():
            break
    seconds = time.perf_counter() - began

    status = np.asarray(state.status)
    tested: dict[int, float] = {}
    for length in run.source.lengths:
        sound = (status != DIVERGED) & (status != UNUSED)
        for i, one in _evaluate(run, programs, state, sound, "test", length=length).items():
            averages, chance = _averages(one), run.source.chance(length)
            step = int(state.step[i])
            results.write("test", seeds[i], step=step, length=length, chance=chance, **averages)
            tested.setdefault(i, averages["score"])
    for i, seed in enumerate(seeds):
        if status[i] == DIVERGED:
            steps_to_solve[i] = None  # whatever it had solved before, it does not solve it now
        results.write(
            "final",
            seed,
            status={SOLVED: "solved", DIVERGED: "diverged"}.get(status[i], "finished"),
            step=int(state.step[i]),
            score=tested.get(i),
            metric=run.metric,
            chance=run.source.chance(run.source.lengths[0]),
            params=run.params,
            solved=None if run.solved is None else steps_to_solve[i] is not None,
            steps_to_solve=steps_to_solve[i],
            seconds=round(seconds, 2),
            compile_seconds=round(programs.seconds, 2),
            device=f"{mesh.devices.size} x {mesh.devices.flat[0].device_kind}",
        )
    shown = " ".join(
        "diverged" if i not in tested else f"{tested[i]:.4g}" for i in range(len(seeds))
    )
    show.finish(f"test {run.metric} {shown}  ({seconds:.1f} s)")


def compile_all(run: Run, seeds: np.ndarray, used: np.ndarray, mesh: Mesh) -> Programs:
    """The initial state of every seed and the compiled calls, with the seconds that they took.

    Programs are compiled side by side: the compiler leaves Python's lock and has the cores to
    itself, and the first start spends more time here than anywhere else.
    """
    began = time.perf_counter()
    learner, source = run.learner, run.source
    inputs, mask = zeros(example(source))

    def initial(shared, seed, used):
        state = init_state(learner, jax.random.key(seed), inputs, mask)
        return state.replace(status=jnp.where(used, RUNNING, UNUSED).astype(jnp.int32))

    def train(shared, state, ids):
        steps, data = shared
        return train_steps(learner, source.train_draw(), state, steps, ids, data)

    def evaluation(drawn):
        def evaluate(shared, params, key, active):
            batches, ids, data = shared
            batches = jnp.where(active, batches, 0)  # a seed that is not asked for costs nothing
            return eval_steps(learner, source.eval_draw(drawn), params, key, batches, ids, data)

        return evaluate

    def compiled(function, shared, *own, donate=()):
        program = jax.jit(parallel.for_each_seed(function, mesh), donate_argnums=donate)
        return program.lower(shared, *own).compile()

    data = parallel.replicate(source.data, mesh)
    steps, ids = jnp.int32(1), source.eval_ids("valid")[1]
    state = parallel.typed(
        jax.eval_shape(parallel.for_each_seed(initial, mesh), (), seeds, used), mesh
    )
    wanted = {source.drawn_at(length) for length in (None, *source.lengths)}
    with ThreadPoolExecutor() as pool:
        start = pool.submit(compiled, initial, (), seeds, used)
        step = pool.submit(
            compiled, train, (steps, data), state, _train_ids(run, seeds, 0), donate=1
        )
        score = {
            drawn: pool.submit(
                compiled, evaluation(drawn), (steps, ids, data), state.params, state.key, used
            )
            for drawn in wanted
        }
        return Programs(
            state=start.result()((), seeds, used),
            data=data,
            train=step.result(),
            evaluate={drawn: program.result() for drawn, program in score.items()},
            seconds=time.perf_counter() - began,
        )


def _train_ids(run: Run, seeds: np.ndarray, start: int) -> np.ndarray | None:
    """Row ids [S, K, B] of one call, or None where batches are drawn."""
    ids = [run.source.train_ids(int(seed), start, run.eval_every) for seed in seeds]
    rows = [one for one in ids if one is not None]
    return np.stack(rows) if rows else None


def _evaluate(
    run: Run,
    programs: Programs,
    state: TrainState,
    active: np.ndarray,
    split: str,
    step: int = 0,
    length: int | None = None,
) -> dict[int, dict[str, float]]:
    """Sums over one split for each active seed, by position."""
    keys = jax.vmap(lambda key: stream(key, split, step))(state.key)
    batches, ids = run.source.eval_ids(split)
    shared = (jnp.int32(batches), ids, programs.data)
    sums = programs.evaluate[run.source.drawn_at(length)](shared, state.params, keys, active)
    return {i: one for i, one in _by_seed(sums, len(active)) if active[i]}


def _by_seed(sums: Sums, count: int) -> list[tuple[int, dict[str, float]]]:
    """(position, sums) of the first `count` seeds, once the devices are done."""
    host = jax.device_get(sums)
    return [(i, {name: float(v[i]) for name, v in host.items()}) for i in range(count)]


def _averages(one: dict[str, float]) -> dict[str, float]:
    loss, score = (mean(one[name], one["weight"]) for name in ("loss", "metric"))
    return {"loss": loss, "score": score, "weight": one["weight"]}
