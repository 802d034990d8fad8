"""Runs one config: all its seeds in one program, from the first step to the last test row."""

import dataclasses
import time
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from experiments.build import Run
from experiments.checkpoint import Checkpoints
from experiments.errors import UserError
from experiments.programs import Programs, compile_all, feed
from experiments.progress import Reporter
from experiments.results import Results, Row, difference
from experiments.signals import Stop
from seqmodels import optim
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
    sums      of each seed since its last `train` row, and the seconds of training in which they
    trained   came, of which the devices were
    waited    without a batch
    order     checksum of the row ids handed to each seed, in their order
    solved    step at which each seed solved the task, or None
    data      what is known of the data, to see that they are the same at the next start
    """

    step: int
    rows: int
    seconds: float
    sums: list[dict[str, Any]]
    order: list[int]
    solved: list[int | None]
    data: Row
    trained: float = 0.0
    waited: float = 0.0

    @classmethod
    def fresh(cls, seeds: int, data: Row) -> "Notes":
        return cls(0, 0, 0.0, [{} for _ in range(seeds)], [0] * seeds, [None] * seeds, data)

    @classmethod
    def read(cls, saved: Row, data: Row) -> "Notes":
        """UserError where a checkpoint's notes lack one of these, or are of other data."""
        names = [field.name for field in dataclasses.fields(cls)]
        missing = [name for name in names if name not in saved]
        if missing:
            raise UserError(
                f"the checkpoint was written by another version: its notes have no {missing[0]}; "
                "choose another --workdir"
            )
        if saved["data"] != data:
            where = difference(saved["data"], data, "data")
            raise UserError(
                f"the data are not those that the run began with{where}; put those back, or choose "
                "another --workdir"
            )
        return cls(**{name: saved[name] for name in names})


@dataclasses.dataclass
class Session:
    """One program's seeds on their way through training, from start or checkpoint to test."""

    run: Run
    seeds: tuple[int, ...]
    every: np.ndarray  # seeds, and those that only fill a device's share
    mesh: Mesh
    programs: Programs
    results: Results
    show: Reporter
    state: TrainState
    notes: Notes

    def running(self) -> np.ndarray:
        return np.asarray(self.state.status) == RUNNING

    def validate(self) -> None:
        """Writes a row for each seed that runs, and does what its score decides."""
        run, notes, active = self.run, self.notes, self.running()
        scores = {}
        for i, one in self.evaluate(self.state.tried, active, "valid").items():
            scores[i] = mean(one["metric"], one["weight"])
            averages, chance = _averages(one), run.source.chance(split="valid")
            self.results.write("valid", self.seeds[i], step=notes.step, chance=chance, **averages)
        if run.learner.selection is not None:
            given = np.full(len(active), np.nan, np.float32)
            given[list(scores)] = list(scores.values())
            self.state = self.programs.judge(self.state, parallel.shard(given, self.mesh))

        solved = np.zeros_like(active)
        for i, score in scores.items():
            solved[i] = run.solves(score) and notes.solved[i] is None
        if solved.any() and run.source.confirms:
            confirm = self.evaluate(self.state.tried, solved, "confirm", notes.step)
            for i, one in confirm.items():
                solved[i] = run.solves(mean(one["metric"], one["weight"]))
        for i in np.flatnonzero(solved).tolist():
            notes.solved[i] = notes.step
        if run.stop_when_solved and solved.any():
            status = np.where(solved, SOLVED, self.state.status).astype(np.int32)
            self.state = self.state.replace(status=parallel.shard(status, self.mesh))
        shown = " ".join([run.metric, *(f"{score:.4g}" for score in scores.values())])
        self.show.update(notes.step, shown)

    def test(self) -> None:
        """Writes the last rows of every seed."""
        run, source, state = self.run, self.run.source, self.state
        status = np.asarray(state.status)
        sound = (status != DIVERGED) & (status != UNUSED)
        params = state.best.params if run.test_best else state.tried
        tested: dict[int, float] = {}
        for length in source.lengths:
            for i, one in self.evaluate(params, sound, "test", length=length).items():
                averages, chance = _averages(one), source.chance(length)
                step = int(state.step[i])
                self.results.write(
                    "test", self.seeds[i], step=step, length=length, chance=chance, **averages
                )
                tested.setdefault(i, averages["score"])
        chance = source.chance(source.lengths[0])
        for i, seed in enumerate(self.seeds):
            solved = None if status[i] == DIVERGED else self.notes.solved[i]
            self.results.write(
                "final",
                seed,
                status=ENDED.get(status[i], "finished"),
                step=int(state.step[i]),
                score=tested.get(i),
                metric=run.metric,
                chance=chance,
                baselines=run.baselines,
                params=run.params,
                solved=None if run.solved is None else solved is not None,
                steps_to_solve=solved,
                seconds=round(self.notes.seconds, 2),
                compile_seconds=round(self.programs.seconds, 2),
                device=f"{self.mesh.devices.size} x {self.mesh.devices.flat[0].device_kind}",
            )
        scores = " ".join(
            "diverged" if i not in tested else f"{tested[i]:.4g}" for i in range(len(self.seeds))
        )
        known = {"chance": chance, **(run.baselines or {})}
        beside = ", ".join(f"{name} {score:.4g}" for name, score in known.items())
        seconds, length = f"{self.notes.seconds:.1f} s", source.lengths[0]
        at = "" if length is None else f" at T = {length}"
        self.show.finish(f"test {run.metric}{at} {scores}  ({beside}; {seconds})")

    def write_train(self) -> None:
        """One row for each seed that took a step since its last row."""
        notes, best = self.notes, self.state.best
        trained, notes.trained = notes.trained, 0.0
        waited, notes.waited = notes.waited, 0.0
        applied = np.asarray(optim.applied(self.state.opt_state))  # skipped ones have no rate
        for i, one in enumerate(notes.sums):
            if one.get("steps"):
                rate = float(self.run.rates(applied[i] - 1))
                if best is not None:
                    rate *= float(best.rate[i])
                self.results.write(
                    "train",
                    self.seeds[i],
                    step=int(self.state.step[i]),
                    loss=one["loss"] / one["weight"],
                    score=one["metric"] / one["weight"],
                    grad_norm=one["grad_norm"] / one["steps"],
                    clipped=one["clipped"] / one["steps"],
                    learning_rate=rate,
                    **{
                        k: v / max(1, one["batches"])
                        for k, v in one.items()
                        if k.endswith("_norm") and k != "grad_norm"
                    },
                    padding=1 - one["real"] / max(1, one["slots"]),
                    lengths={str(2**n): int(c) for n, c in enumerate(one["lengths"]) if c},
                    order=notes.order[i],
                    tokens_per_second=round(one["real"] / trained, 1) if trained else None,
                    waiting=round(waited / trained, 4) if trained else None,
                    seconds=round(notes.seconds, 3),
                )
            notes.sums[i] = {}

    def evaluate(
        self,
        params: Any,
        active: np.ndarray,
        split: str,
        step: int = 0,
        length: int | None = None,
    ) -> dict[int, dict[str, float]]:
        """Sums over one split for each active seed, by position."""
        keys = jax.vmap(lambda key: stream(key, split, step))(self.state.key)
        total: list[dict[str, Any]] = [{} for _ in active]
        carry = self.programs.carry
        for part in self.run.source.parts(split, length):
            sums, carry = self.programs.evaluate(part, params, keys, active, carry)
            _add(total, sums)
        return {i: one for i, one in enumerate(total) if active[i]}


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
    data = {"per_epoch": run.source.per_epoch, "chance": run.source.facts.chance}
    rows = run.source.batch
    like = jax.eval_shape(lambda state: parallel.trim(state, len(seeds), rows), programs.like)
    found = checkpoints.restore(like)
    state, notes = programs.start(), Notes.fresh(len(seeds), data)
    if found is None:
        results.forget(seeds)
    else:
        notes = Notes.read(found[1], data)
        state = parallel.shard(parallel.fill(found[0], state), mesh)
        results.rewind(notes.rows)
        show.resume(notes.step)
    session = Session(run, seeds, every, mesh, programs, results, show, state, notes)
    try:
        advance(session, checkpoints, stop)
    finally:
        run.source.close()
    session.test()


def advance(session: Session, checkpoints: Checkpoints, stop: Stop) -> None:
    """All the steps that are left."""
    run, notes, programs = session.run, session.notes, session.programs

    def written() -> Row:
        notes.rows = session.results.size()
        return dataclasses.asdict(notes)

    began, before = time.perf_counter(), notes.seconds
    # Call borders depend on the step number alone, so any two runs of a config share them.
    while notes.step < run.steps and session.running().any():
        border = min(run.steps, (notes.step // run.eval_every + 1) * run.eval_every)
        late = None  # sums of the call under way: fetched when the next one has begun
        since = time.perf_counter()
        while notes.step < border and stop.number is None:
            end, shape = _call(run, notes.step, border)
            asked = time.perf_counter()
            ids = feed(run, session.every, notes.step, shape, end)
            notes.waited += time.perf_counter() - asked
            _note_order(notes.order, ids, end - notes.step)
            steps = jnp.int32(end - notes.step)
            session.state, sums = programs.train[shape](steps, session.state, ids)
            _add(notes.sums, late)
            late, notes.step = sums, end
            if checkpoints.due():
                break
        _add(notes.sums, late)
        notes.trained += time.perf_counter() - since
        notes.seconds = before + time.perf_counter() - began
        if notes.step == border:
            session.write_train()
            session.validate()
            notes.seconds = before + time.perf_counter() - began
        ended = notes.step == run.steps or not session.running().any()
        if ended or stop.number is not None or checkpoints.due():
            saved = parallel.trim(session.state, len(session.seeds), run.source.batch)
            checkpoints.save(notes.step, saved, written)
        stop.check()


def _call(run: Run, step: int, border: int) -> tuple[int, Any]:
    """Where the next call ends, and the shape of its batches, which is the same for all."""
    shape = run.source.shape(step)
    end = min(border, (step // run.steps_per_call + 1) * run.steps_per_call)
    last = next((s for s in range(step + 1, end) if run.source.shape(s) != shape), end)
    return last, shape


def _note_order(order: list[int], ids: Any, count: int) -> None:
    """`ids` [S, K, ...] of which `count` steps are real; the others fill up."""
    for leaf in jax.tree.leaves(ids):
        for i in range(len(order)):
            order[i] = zlib.crc32(np.ascontiguousarray(leaf[i, :count]).tobytes(), order[i])


def _add(total: list[dict[str, Any]], sums: Any) -> None:
    """Adds a call's sums to those of each seed, in double precision, once the devices are done."""
    for name, values in jax.device_get(sums or {}).items():
        for i, one in enumerate(total):
            one[name] = (np.asarray(one.get(name, 0.0)) + values[i].astype(np.float64)).tolist()


def _averages(one: dict[str, float]) -> dict[str, float]:
    loss, score = (mean(one[name], one["weight"]) for name in ("loss", "metric"))
    return {"loss": loss, "score": score, "weight": one["weight"]}
