"""What a run leaves behind: `config.json` and `results.jsonl` in its work directory.

Each line of `results.jsonl` is one JSON object. All have `kind`, `config` (hash of the config
without its seeds), `task`, `cell` (the config's label) and `seed`; numbers that are not finite
are null. The kinds, with their other fields:

    train  since the row before, up to `step`: loss, score; grad_norm (mean), clipped (share of the
           updates whose gradient was); learning_rate (of the last update that was applied);
           h_norm, c_norm (root mean square of the carry after a batch; re_norm, im_norm: of LRU)
           and padding (share of the
           steps), both of rows with a real step; lengths (rows by their number of real steps:
           {"4": 7} are seven rows of 4 to 7); order (checksum of the ids of all rows so far);
           tokens_per_second (real steps, of this seed), waiting (share of the time in which the
           devices waited for batches); seconds (so far)
    valid  step, loss, score, weight (how many terms were scored), chance (the score without
           looking at inputs)
    test   step, length (null for a data set), loss, score, weight, chance
    final  status (finished, solved, diverged, or stopped: no longer improving), step, score (on
           test, null if diverged), metric, chance, baselines (scores that need no training, by
           name; or null), params, solved (true, false, or null where no
           threshold is set), steps_to_solve, seconds and compile_seconds (of the whole
           program, all its seeds), device

A pair (config, seed) with a `final` row is finished and is not run again.
"""

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments.boards import Boards
from experiments.errors import UserError

Row = dict[str, Any]

CLOCKS = {"seconds", "compile_seconds", "tokens_per_second", "waiting", "device"}
"""Fields that depend on the machine. All others are the same, bit for bit, however often a run was
interrupted on its way."""

NUMBER = float | int
SCORE = NUMBER | None  # null where it is not finite
SCHEMA: dict[str, dict[str, Any]] = {
    "train": {"step": int},
    "valid": {"step": int, "score": SCORE, "chance": NUMBER},
    "test": {"step": int, "length": int | None, "score": SCORE, "chance": NUMBER},
    "final": {
        "status": str,
        "step": int,
        "score": SCORE,
        "metric": str,
        "chance": NUMBER,
        "params": int,
        "solved": bool | None,
        "steps_to_solve": int | None,
        "seconds": NUMBER,
        "compile_seconds": NUMBER,
        "device": str,
    },
}
"""What readers need of each kind of row."""


def as_dict(config: ConfigDict) -> Row:
    """Plain values with references resolved; tuples become lists, as JSON has them."""
    return json.loads(json.dumps(config.copy_and_resolve_references().to_dict()))


def saved_config(workdir: Path) -> Row:
    """config.json of a run or a comparison. UserError where there is none."""
    path = workdir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} holds no run ({path.name}: {error.strerror})"
        ) from error
    except ValueError:
        raise UserError(f"{path} is not JSON; choose another --workdir") from None
    if not isinstance(config, dict) or not {"runs", "train"} & {*config}:
        raise UserError(f"{path} is no config of a run; choose another --workdir")
    return config


def config_hash(config: Row) -> str:
    """Of everything that makes the numbers of one seed; 12 hex digits."""
    text = json.dumps(without_seeds(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_rows(path: Path) -> list[Row]:
    """Rows of one results.jsonl; a last line that a kill cut short is left out.

    Raises UserError, with file and line, for any other line that is not a row, or lacks a field
    that is read again.
    """
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is incomplete
        try:
            row = json.loads(line)
            schema = SCHEMA[row["kind"]]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}:{number} is not a row of results: {line[:60]!r}") from None
        for field, kind in {"seed": int, **schema}.items():
            if field not in row or not isinstance(row[field], kind):
                given = repr(row[field])[:60] if field in row else "missing"
                raise UserError(f"{path}:{number}: {field} of this {row['kind']} row is {given}")
        rows.append(row)
    return rows


def write_file(path: Path, text: str) -> None:
    """The whole file or nothing: written beside its place and moved there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def open_workdir(workdir: Path, config: Row) -> None:
    """Creates the directory and its config.json, or checks that it belongs to this config.

    Which seeds are run and what is saved may change. Raises UserError, having written nothing, for
    a directory of another config or one that cannot be written.
    """
    check_workdir(workdir, config)
    path = workdir / "config.json"
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        if not path.exists() or saved_config(workdir) != config:
            write_file(path, json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"--workdir={workdir}: {error.strerror or error}") from error


def check_workdir(workdir: Path, config: Row) -> None:
    """UserError unless the directory is new, empty or of this config. Writes nothing."""
    path = workdir / "config.json"
    try:
        if not path.exists():
            if workdir.exists() and any(path.name[0] != "." for path in workdir.iterdir()):
                raise UserError(
                    f"--workdir={workdir} is not empty and holds no run; choose another --workdir"
                )
            return
    except OSError as error:
        raise UserError(f"--workdir={workdir}: {error.strerror or error}") from error
    saved, new = saved_config(workdir), without_seeds(config)
    try:
        old = without_seeds(saved)
    except (AttributeError, TypeError):
        raise UserError(f"{path} is no config of a run; choose another --workdir") from None
    if old != new:
        raise UserError(
            f"--workdir={workdir} holds another config{difference(old, new)}; "
            "choose another --workdir"
        )


def without_seeds(config: Row) -> Row:
    """A config of one run, or of a comparison, without which seeds are run and what is saved."""
    if "runs" in config:
        rest = {k: v for k, v in config.items() if k != "seeds"}
        return {**rest, "runs": {k: without_seeds(v) for k, v in config["runs"].items()}}
    train = {k: v for k, v in config.get("train", {}).items() if k not in ("seed", "seeds")}
    return {**{k: v for k, v in config.items() if k != "checkpoint"}, "train": train}


class Results:
    """The rows of one run, appended as they come, and the same numbers for TensorBoard."""

    def __init__(self, workdir: Path, config: Row, task: str):
        self.path = workdir / "results.jsonl"
        self.common = {"config": config_hash(config), "task": task, "cell": config["label"]}
        rows = read_rows(self.path) if self.path.exists() else []
        for row in rows:
            if row.get("config", self.common["config"]) != self.common["config"]:
                raise UserError(f"{self.path} has rows of another config; choose another --workdir")
        finals = [row for row in rows if row["kind"] == "final"]
        self.finished = {row["seed"]: row["status"] for row in finals}
        self._chances = {row["chance"] for row in finals}
        self._boards = Boards(workdir / "tensorboard", lambda: read_rows(self.path))

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *error: Any) -> None:
        self._boards.close()

    def write(self, kind: str, seed: int, **fields: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(as_line({"kind": kind, **self.common, "seed": seed, **fields}))
        self._boards.write(kind, seed, fields)
        if kind == "final":
            self.finished[seed] = fields["status"]

    def check_chance(self, chance: float) -> None:
        """UserError if finished seeds had another one: they have seen other data."""
        if self._chances - {chance}:
            raise UserError(
                f"{self.path} has seeds that ran on other data (chance {min(self._chances)} there "
                f"and {chance} here); put the data back, or choose another --workdir"
            )

    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def forget(self, seeds: tuple[int, ...]) -> None:
        """Takes the rows of `seeds` out: they are begun again, and would be there twice."""
        rows = read_rows(self.path) if self.path.exists() else []
        write_file(self.path, "".join(as_line(row) for row in rows if row["seed"] not in seeds))

    def rewind(self, size: int) -> None:
        """Cuts off what was written after a checkpoint; UserError if not even that is there."""
        if self.size() < size:
            raise UserError(
                f"{self.path} has {self.size()} bytes and its checkpoint knows of {size}; "
                "put the whole file back, or choose another --workdir"
            )
        os.truncate(self.path, size)


def as_line(row: Row) -> str:
    """JSON of one row, with null for what is not finite."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"


def difference(old: Row, new: Row, path: str = "config") -> str:
    """ " (config.model.features is 64 there and 32 here)": the first field that differs."""
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if a != b:
            name = f"{path}.{key}"
            if isinstance(a, dict) and isinstance(b, dict):
                return difference(a, b, name)
            return f" ({name} is {_short(a)} there and {_short(b)} here)"
    return ""


def _short(value: Any) -> str:
    return "absent" if value is None else repr(value) if not isinstance(value, dict) else "a group"
