"""Runs one config: all its seeds in one program, from the first step to the last test row."""

import dataclasses
import time
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.build import Run
from experiments.checkpoint import Checkpoints
from experiments.programs import Programs, compile_all, feed
from experiments.progress import Reporter
from experiments.results import Results, Row
from experiments.signals import Stop
from seqmodels.metrics import mean
from seqmodels.training import seeds as parallel
from seqmodels.training.state import (
    DIVERGED,
    RUNNING,
    SOLVED,
    STOPPED,
    UNUSED,
    TrainState,
    stream,
)

ENDED = {SOLVED: "solved", DIVERGED: "diverged", STOPPED: "stopped"}


@dataclasses.dataclass
class Notes:
    """What the host knows of a run besides its state; saved with it.

    step      updates done
    rows      bytes of results.jsonl that belong to them
    seconds   of training and validation, over all starts
    sums      of each seed since its last `train` row
    order     checksum of the row ids that each seed has read, in their order
    solved    step at which each seed solved the task, or None
    """

    step: int
    rows: int
    seconds: float
    sums: list[dict[str, Any]]
    order: list[int]
    solved: list[int | None]

    @classmethod
    def fresh(cls, seeds: int) -> "Notes":
        return cls(0, 0, 0.0, [{} for _ in range(seeds)], [0] * seeds, [None] * seeds)


def train_and_test(
    run: Run,
    seeds: tuple[int, ...],
    results: Results,
    show: Reporter,
    checkpoints: Checkpoints,
    stop: Stop,
) -> None:
    """Trains and tests `seeds`, from their newest checkpoint on, writing rows as they come."""
    mesh = parallel.seed_mesh(len(seeds), run.shards)
    every = np.resize(seeds, parallel.padded(len(seeds), mesh))  # the surplus never runs
    programs = compile_all(run, every, np.arange(len(every)) < len(seeds), mesh, stop)
    found = checkpoints.restore(programs.like)
    if found is None:
        state, notes = programs.start(), Notes.fresh(len(seeds))
        results.forget(seeds)
    else:
        state, saved = found
        state = parallel.shard(state, mesh)
        notes = Notes(**{f.name: saved[f.name] for f in dataclasses.fields(Notes)})
        results.rewind(notes.rows)
        show.resume(notes.step)

    began, before = time.perf_counter(), notes.seconds
    late: Any = None  # sums of the call under way: fetched when the next one has begun
    waited = trained = 0.0

    def written() -> Row:
        notes.rows = results.size()
        return dataclasses.asdict(notes)

    def fetch() -> None:
        nonlocal late
        if late is not None:
            _add(notes.sums, late)
            late = None

    # Call borders depend on the step number alone, so any two runs of a config share them.
    while notes.step < run.steps and (np.asarray(state.status) == RUNNING).any():
        border = min(run.steps, (notes.step // run.eval_every + 1) * run.eval_every)
        since = time.perf_counter()
        while notes.step < border and stop.number is None:
            end, shape = _call(run, notes.step, border)
            asked = time.perf_counter()
            ids = feed(run, every, notes.step, shape, end)
            waited += time.perf_counter() - asked
            _note_order(notes.order, ids)
            state, sums = programs.train[shape](jnp.int32(end - notes.step), state, ids)
            fetch()
            late, notes.step = sums, end
        fetch()
        trained += time.perf_counter() - since
        notes.seconds = before + time.perf_counter() - began
        score = None
        if notes.step == border:
            _write_train(run, seeds, results, notes, trained, waited, state)
            waited = trained = 0.0
            state, score = _validate(run, programs, seeds, results, notes, state, mesh, show)
            notes.seconds = before + time.perf_counter() - began
        ending = notes.step == run.steps or not (np.asarray(state.status) == RUNNING).any()
        now = ending or stop.number is not None
        checkpoints.save(notes.step, state, written, score, now=now)
        stop.check()
    _test(run, programs, seeds, results, notes, state, mesh, show)


def _call(run: Run, step: int, border: int) -> tuple[int, Any]:
    """Where the next call ends, and the shape of its batches, which is the same for all."""
    shape = run.source.shape(step)
    end = min(border, (step // run.steps_per_call + 1) * run.steps_per_call)
    last = next((s for s in range(step + 1, end) if run.source.shape(s) != shape), end)
    return last, shape


def _note_order(order: list[int], ids: Any) -> None:
    for leaf in jax.tree.leaves(ids):
        for i in range(len(order)):
            order[i] = zlib.crc32(np.ascontiguousarray(leaf[i]).tobytes(), order[i])


def _validate(
    run: Run,
    programs: Programs,
    seeds: tuple[int, ...],
    results: Results,
    notes: Notes,
    state: TrainState,
    mesh: Any,
    show: Reporter,
) -> tuple[TrainState, float]:
    """The state after what validation decided, and the mean score of the seeds that still run."""
    active = np.asarray(state.status) == RUNNING
    scores = {}
    for i, one in _evaluate(run, programs, state.tried, state.key, active, "valid").items():
        scores[i] = mean(one["metric"], one["weight"])
        results.write("valid", seeds[i], step=notes.step, **_averages(one))
    if run.learner.selection is not None:
        given = np.full(len(active), np.nan, np.float32)
        given[list(scores)] = list(scores.values())
        state = programs.judge(state, parallel.shard(given, mesh))

    solved = np.zeros_like(active)
    for i, score in scores.items():
        solved[i] = run.solves(score) and notes.solved[i] is None
    if solved.any() and run.source.confirms:
        confirm = _evaluate(
            run, programs, state.tried, state.key, solved, "confirm", notes.step
        ).items()
        for i, one in confirm:
            solved[i] = run.solves(mean(one["metric"], one["weight"]))
    for i in np.flatnonzero(solved).tolist():
        notes.solved[i] = notes.step
    if run.stop_when_solved and solved.any():
        status = np.where(solved, SOLVED, state.status).astype(np.int32)
        state = state.replace(status=parallel.shard(status, mesh))
    show.update(notes.step, " ".join([run.metric, *(f"{s:.4g}" for s in scores.values())]))
    return state, float(np.mean(list(scores.values()))) if scores else float("nan")


def _test(
    run: Run,
    programs: Programs,
    seeds: tuple[int, ...],
    results: Results,
    notes: Notes,
    state: TrainState,
    mesh: Any,
    show: Reporter,
) -> None:
    status = np.asarray(state.status)
    sound = (status != DIVERGED) & (status != UNUSED)
    params = state.best.params if run.test_best else state.tried
    tested: dict[int, float] = {}
    for length in run.source.lengths:
        found = _evaluate(run, programs, params, state.key, sound, "test", length=length)
        for i, one in found.items():
            averages, chance = _averages(one), run.source.chance(length)
            step = int(state.step[i])
            results.write("test", seeds[i], step=step, length=length, chance=chance, **averages)
            tested.setdefault(i, averages["score"])
    for i, seed in enumerate(seeds):
        solved = None if status[i] == DIVERGED else notes.solved[i]
        results.write(
            "final",
            seed,
            status=ENDED.get(status[i], "finished"),
            step=int(state.step[i]),
            score=tested.get(i),
            metric=run.metric,
            chance=run.source.chance(run.source.lengths[0]),
            baselines=run.baselines,
            params=run.params,
            solved=None if run.solved is None else solved is not None,
            steps_to_solve=solved,
            seconds=round(notes.seconds, 2),
            compile_seconds=round(programs.seconds, 2),
            device=f"{mesh.devices.size} x {mesh.devices.flat[0].device_kind}",
        )
    shown = " ".join(
        "diverged" if i not in tested else f"{tested[i]:.4g}" for i in range(len(seeds))
    )
    known = {"chance": run.source.chance(run.source.lengths[0]), **(run.baselines or {})}
    beside = ", ".join(f"{name} {score:.4g}" for name, score in known.items())
    show.finish(f"test {run.metric} {shown}  ({beside}; {notes.seconds:.1f} s)")


def _write_train(
    run: Run,
    seeds: tuple[int, ...],
    results: Results,
    notes: Notes,
    trained: float,
    waited: float,
    state: TrainState,
) -> None:
    """One row for each seed that took a step since its last row."""
    for i, one in enumerate(notes.sums):
        if one.get("steps"):
            rate = float(run.rates(notes.step - 1))
            if state.best is not None:
                rate *= float(state.best.rate[i])
            results.write(
                "train",
                seeds[i],
                step=notes.step,
                loss=one["loss"] / one["weight"],
                score=one["metric"] / one["weight"],
                grad_norm=one["grad_norm"] / one["steps"],
                clipped=one["clipped"] / one["steps"],
                learning_rate=rate,
                **{k: v / one["batches"] for k, v in one.items() if k in ("h_norm", "c_norm")},
                padding=1 - one["real"] / one["slots"],
                lengths={str(2**n): int(c) for n, c in enumerate(one["lengths"]) if c},
                order=notes.order[i],
                tokens_per_second=round(one["real"] / trained, 1) if trained else None,
                waiting=round(waited / trained, 4) if trained else None,
                seconds=round(notes.seconds, 3),
            )
        notes.sums[i] = {}


def _evaluate(
    run: Run,
    programs: Programs,
    params: Any,
    keys: jax.Array,
    active: np.ndarray,
    split: str,
    step: int = 0,
    length: int | None = None,
) -> dict[int, dict[str, float]]:
    """Sums over one split for each active seed, by position."""
    keys = jax.vmap(lambda key: stream(key, split, step))(keys)
    total: list[dict[str, Any]] = [{} for _ in active]
    carry = programs.carry
    for part in run.source.parts(split, length):
        sums, carry = programs.evaluate(part, params, keys, active, carry)
        _add(total, sums)
    return {i: one for i, one in enumerate(total) if active[i]}


def _add(total: list[dict[str, Any]], sums: Any) -> None:
    """Adds a call's sums to those of each seed, in double precision, once the devices are done."""
    for name, values in jax.device_get(sums).items():
        for i, one in enumerate(total):
            one[name] = (np.asarray(one.get(name, 0.0)) + values[i].astype(np.float64)).tolist()


def _averages(one: dict[str, float]) -> dict[str, float]:
    loss, score = (mean(one[name], one["weight"]) for name in ("loss", "metric"))
    return {"loss": loss, "score": score, "weight": one["weight"]}
