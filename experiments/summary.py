"""From the files of a work directory to numbers: one `Arm` for each task and label.

Only files are read: config.json, results.jsonl and error.txt. What a run lacks shows as missing
seeds, so that a comparison which was interrupted, or is still going on, can be summed up too.
"""

import csv
import functools
import io
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.results import NUMBER, Row, read_rows, saved_config

COLUMNS = (
    "task",
    "cell",
    "seeds",
    "params",
    "metric",
    "mean",
    "std",
    "chance",
    "solved",
    "steps_to_solve",
    "seconds",
    "status",
)
FIRST = ("rnn", "lstm", "gru")
"""The order that readers know; whatever else there is comes after it."""


FIELDS: dict[str, Any] = {
    "label": str,
    "task.name": str,
    "model.cell": str,
    "model.gate_bias": NUMBER | None,
    "model.chrono_length": int | None,
    "optimizer": dict,
    "train.seed": int,
    "train.seeds": int,
    "train.solved": NUMBER | None,
    "train.stop_when_solved": bool,
    "train.eval_every": int,
    "eval.lengths": list,
}
"""What is read of each config, and its type; and of tasks, which are tested on lengths:"""
OF_TASKS = {"task.length": int}


class Metric(NamedTuple):
    """How a metric is written out, and which way it improves."""

    name: str
    higher_is_better: bool

    @property
    def axis(self) -> str:
        return f"{self.name} ({'higher' if self.higher_is_better else 'lower'} is better)"

    @property
    def sign(self) -> int:
        return 1 if self.higher_is_better else -1


METRICS = {  # those of seqmodels.metrics, which cannot be imported without JAX
    "accuracy": Metric("accuracy", True),
    "mse": Metric("mean squared error", False),
    "cross_entropy": Metric("cross entropy in nats", False),
    "binary_cross_entropy": Metric("binary cross entropy in nats", False),
    "bits": Metric("bits", False),
}


@dataclass(frozen=True)
class Arm:
    """One label on one task, with the rows of those seeds that its config asks for."""

    task: str
    label: str
    config: Row
    rows: tuple[Row, ...] = ()
    error: str = ""  # what error.txt says, in one line

    @property
    def seeds(self) -> range:
        return _seeds(self.config)

    @functools.cached_property
    def finals(self) -> list[Row]:
        by_seed = {row["seed"]: row for row in self.rows if row["kind"] == "final"}
        return [by_seed[seed] for seed in self.seeds if seed in by_seed]

    @functools.cached_property
    def sound(self) -> list[Row]:
        """Final rows with a score: diverged seeds enter no mean, count or median."""
        return [r for r in self.finals if r["status"] != "diverged" and r["score"] is not None]

    @functools.cached_property
    def diverged(self) -> set[int]:
        """Seeds that ended without a score."""
        return {row["seed"] for row in self.finals} - {row["seed"] for row in self.sound}

    @property
    def status(self) -> str:
        if self.diverged:
            return "diverged"
        return "ok" if len(self.finals) == len(self.seeds) else "failed"

    @property
    def scores(self) -> list[float]:
        return [row["score"] for row in self.sound]

    @property
    def steps_to_solve(self) -> list[int]:
        return [row["steps_to_solve"] for row in self.sound if row["solved"]]

    @property
    def solved(self) -> int | None:
        """How many seeds; None where no threshold is set or no seed has ended."""
        if self.threshold is None or not self.finals:
            return None
        return len(self.steps_to_solve)

    @property
    def threshold(self) -> float | None:
        return self.config["train"]["solved"]

    @property
    def gated(self) -> bool:
        """Only cells with gates have a start for them in the config."""
        model = self.config["model"]
        return model["gate_bias"] is not None or model["chrono_length"] is not None

    @property
    def params(self) -> int | None:
        return self.finals[0]["params"] if self.finals else None

    @property
    def metric(self) -> str:
        return self.finals[0]["metric"] if self.finals else ""

    @property
    def scale(self) -> Metric:
        return METRICS[self.metric]

    @property
    def chance(self) -> float:
        return self.finals[0]["chance"] if self.finals else math.nan

    @property
    def seconds(self) -> float | None:
        """Of all programs that ran these seeds: those of one program share its clock."""
        programs = {(row["seconds"], row["compile_seconds"]) for row in self.finals}
        return sum(seconds for seconds, _ in programs) if programs else None

    def curves(self) -> dict[int, tuple[list[int], list[float]]]:
        """Steps and validation scores of each seed; nan where a score was not finite."""
        curves: dict[int, tuple[list[int], list[float]]] = {}
        for row in self.rows:
            if row["kind"] == "valid":
                steps, scores = curves.setdefault(row["seed"], ([], []))
                steps.append(row["step"])
                scores.append(math.nan if row["score"] is None else row["score"])
        return curves

    def tests(self) -> dict[int, list[Row]]:
        """Test rows of sound seeds by length, the shortest first; empty for a data set."""
        sound = {row["seed"] for row in self.sound}
        tests: dict[int, list[Row]] = {}
        for row in self.rows:
            if row["kind"] != "test" or None in (row["length"], row["score"]):
                continue
            if row["seed"] in sound:
                tests.setdefault(row["length"], []).append(row)
        return dict(sorted(tests.items()))


def read_arms(workdir: Path) -> list[Arm]:
    """Every arm of a run or a comparison, in the order of the report.

    Raises UserError for a directory without a config.json of either, or with corrupt results.
    """
    path, config = workdir / "config.json", saved_config(workdir)
    runs = config.get("runs", {"": config})
    if not isinstance(runs, dict) or not runs:
        raise UserError(f"{path}: config.runs is {runs!r}; a comparison has runs by name")
    for name, one in runs.items():
        _check_config(one, f"{path}: config.runs.{name}" if name else f"{path}: config")
    arms = []
    for name, one in runs.items():
        task = _task_name(one["task"], [other["task"] for other in runs.values()])
        twins = [r for r in runs.values() if (r["task"], r["label"]) == (one["task"], one["label"])]
        label = one["label"] if len(twins) == 1 else f"{one['label']} ({name})"
        arms.append(_read_arm(workdir / name, task, label, one))
    tasks = list(dict.fromkeys(arm.task for arm in arms))
    return sorted(arms, key=lambda arm: (tasks.index(arm.task), *_rank(arm)))


def by_task(arms: Iterable[Arm]) -> dict[str, list[Arm]]:
    tasks: dict[str, list[Arm]] = {}
    for arm in arms:
        tasks.setdefault(arm.task, []).append(arm)
    return tasks


def stderr(values: Sequence[float]) -> float:
    """Standard error of the mean; infinite for one value, which says nothing of a spread."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def summary_row(arm: Arm) -> dict[str, str]:
    """The cells of summary.csv; what does not exist is empty."""
    scores, steps = arm.scores, arm.steps_to_solve
    values: dict[str, str | float | None] = {
        "task": arm.task,
        "cell": arm.label,
        "seeds": len(arm.finals),
        "params": arm.params,
        "metric": arm.metric,
        "mean": statistics.fmean(scores) if scores else None,
        "std": statistics.stdev(scores) if len(scores) > 1 else None,
        "chance": arm.chance,
        "solved": arm.solved,
        "steps_to_solve": statistics.median(steps) if steps else None,
        "seconds": arm.seconds,
        "status": arm.status,
    }
    return {key: _text(value) for key, value in values.items()}


def summary_csv(arms: Iterable[Arm]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(summary_row(arm) for arm in arms)
    return text.getvalue()


def _read_arm(place: Path, task: str, label: str, config: Row) -> Arm:
    results, error = place / "results.jsonl", place / "error.txt"
    rows = read_rows(results) if results.exists() else []
    for row in rows:
        if row["kind"] == "final" and row["metric"] not in METRICS:
            raise UserError(f"{results}: metric {row['metric']!r} is unknown to this version")
    wanted = tuple(row for row in rows if row["seed"] in _seeds(config))
    return Arm(task, label, config, wanted, _reason(error.read_text()) if error.exists() else "")


def _check_config(config: Any, where: str) -> None:
    """UserError for a config that lacks a field which is read here."""
    _check_fields(config, FIELDS, where)
    if config["eval"]["lengths"]:
        _check_fields(config, OF_TASKS, where)


def _check_fields(config: Any, fields: dict[str, Any], where: str) -> None:
    for field, kind in fields.items():
        value = config
        for name in field.split("."):
            if not isinstance(value, dict) or name not in value:
                raise UserError(f"{where}.{field} is missing; put the whole file back")
            value = value[name]
        if not isinstance(value, kind):
            raise UserError(f"{where}.{field} is {value!r}; put the whole file back")


def _seeds(config: Row) -> range:
    first, count = config["train"]["seed"], config["train"]["seeds"]
    return range(first, first + count)


def _reason(traceback: str) -> str:
    """The line that names the exception: messages of many lines come after it."""
    lines = traceback.strip().splitlines()
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (named or lines or [""])[-1]


def _text(value: str | float | None) -> str:
    if value is None or value != value:  # nan is the one number that is not itself
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _task_name(task: Row, others: list[Row]) -> str:
    """ "adding", or "adding length=400" where a comparison has the task in several forms; a set of
    data sets has the name of the one."""
    name = _name(task)
    same = [other for other in others if _name(other) == name]
    differing = [key for key in task if any(other.get(key) != task[key] for other in same)]
    return " ".join([name, *(f"{key}={task[key]}" for key in differing)])


def _name(task: Row) -> str:
    return str(task.get("set", task["name"]))


def _rank(arm: Arm) -> tuple[int, ...]:
    """rnn, lstm, gru, then variants of each; others as in the config."""
    return tuple(
        FIRST.index(name) if name in FIRST else len(FIRST)
        for name in (arm.label, arm.config["model"]["cell"])
    )
