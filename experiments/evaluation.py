"""Scores of a trained run in groups of like length, with how much was scored in each."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from experiments.build import Run
from experiments.errors import UserError, blame
from experiments.progress import console
from experiments.results import Row
from experiments.sources import Drawn, Part, Resident
from experiments.trained import read_config, read_params, rebuild
from seqmodels.data.epochs import by_length, in_order
from seqmodels.data.prepare import SPLITS
from seqmodels.metrics import mean, perplexity
from seqmodels.training.state import empty_carry, stream
from seqmodels.training.step import eval_steps

# Name, rows, and the batches that hold them, anew at each call: a stream may be too large to keep.
Group = tuple[str, int, Callable[[], Iterable[Part]]]
NOTHING = {"loss": 0.0, "metric": 0.0, "weight": 0.0}


def evaluate(
    workdir: Path,
    split: str = "test",
    *,
    lengths: tuple[int, ...] = (),
    widths: tuple[int, ...] = (),
    seed: int | None = None,
) -> list[Row]:
    """One row a seed and group: seed, step (of the checkpoint), diverged, split, length (its name),
    rows, weight (what was scored), loss, score, metric, chance, and perplexity for cross entropy.
    Where nothing was scored, as in rows of one symbol or of a seed that diverged, loss, score and
    perplexity are None.

    Raises UserError for a directory without a trained run, or an option that does not apply.
    """
    config = read_config(workdir)
    run = rebuild(workdir, config)
    if split not in SPLITS:
        raise UserError(f"--split={split} is unknown (allowed: {', '.join(SPLITS)})")
    groups = list(_groups(run, split, lengths, widths))
    rows = []
    for one in run.seeds if seed is None else (seed,):
        found = read_params(workdir, config, one)
        key = stream(jax.random.key(one), "test", 0)
        for name, count, parts in groups:
            sums = NOTHING if found.diverged else _sums(run, found.params, key, parts())
            scored = sums["weight"] > 0
            row = {
                "seed": one,
                "step": found.step,
                "diverged": found.diverged,
                "split": split,
                "length": name,
                "rows": count,
                "weight": sums["weight"],
                "loss": mean(sums["loss"], sums["weight"]) if scored else None,
                "score": mean(sums["metric"], sums["weight"]) if scored else None,
                "metric": run.metric,
                "chance": run.source.chance(
                    int(name) if isinstance(run.source, Drawn) else None, split
                ),
            }
            if run.source.spec.loss == "cross_entropy":
                row["perplexity"] = perplexity(sums["loss"], sums["weight"]) if scored else None
            rows.append(row)
    return rows


def show(rows: list[Row]) -> None:
    """A table in the terminal."""
    from rich.table import Table

    shown = [name for name in rows[0] if name not in ("metric", "split", "step", "diverged")]
    title = f"{rows[0]['metric']} on {rows[0]['split']}, step {rows[0]['step']}"
    table = Table(*shown, title=title, title_justify="left")
    for row in rows:
        said = {**row, "score": "diverged"} if row["diverged"] else row
        table.add_row(*(_text(said[name]) for name in shown))
    console.print(table)


def _groups(
    run: Run, split: str, lengths: tuple[int, ...], widths: tuple[int, ...]
) -> Iterator[Group]:
    source = run.source
    if lengths and not isinstance(source, Drawn):
        raise UserError(f"--lengths is for tasks; {run.task} is a data set, use --widths")
    if widths and not isinstance(source, Resident):
        raise UserError(f"--widths is for data sets of rows; {run.task} has none")
    if isinstance(source, Drawn):
        if split != "test":
            raise UserError(f"--split={split} is for data sets; {run.task} draws fresh rows")
        for length in lengths or source.lengths:
            with blame("--lengths"):
                (part,) = source.parts("test", length)
                part.shape[0].steps(length)
            rows = source.eval_batch * part.batches
            yield str(length), rows, partial(source.parts, "test", length)
    elif isinstance(source, Resident):
        every = np.concatenate([*source.splits[split].values()])
        real = np.asarray(source.data.lengths)[every]
        top = int(np.ceil(np.log2(real.max())))
        with blame("--widths"):
            grouped = by_length(every, real, widths or tuple(2**n for n in range(top + 1)))
        for width, ids in grouped.items():
            batches = in_order(ids, source.eval_batch)
            part = Part(width, len(batches), batches)
            yield f"up to {width}", len(ids), partial(tuple, [part])
    else:
        yield "all", source.eval_batch, partial(source.parts, split)


def _sums(run: Run, params: Any, key: jax.Array, parts: Iterable[Part]) -> dict[str, float]:
    carry, total = None, {**NOTHING}
    for part in parts:
        draw = run.source.eval_draw(part.shape)
        if run.source.carried and carry is None:
            first = jax.tree.map(lambda leaf: leaf[0], part.ids)
            inputs = jax.eval_shape(draw, key, first, run.source.data).inputs
            carry = empty_carry(run.learner.model, params, inputs)
        call = _program(run.learner, cast(Any, run.source), part.shape)
        count = jnp.int32(part.batches)
        sums, carry = call(params, key, count, part.ids, run.source.data, carry)
        for name, value in jax.device_get(sums).items():
            total[name] += float(value)
    return total


@lru_cache(maxsize=32)
def _program(learner: Any, source: Any, shape: Any) -> Any:
    """Traced once for each shape; another seed's parameters fit as well."""
    return jax.jit(partial(eval_steps, learner, source.eval_draw(shape)))


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
