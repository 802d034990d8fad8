"""Times recurrent layers of several libraries side by side, each in a process of its own.

    python -m experiments.benchmark --out=benchmark.json

Forward pass and whole training step (forward, backward, update) for RNN, LSTM and GRU, on shapes
(B, T, E, H): adding, small, mnist, big, and ragged (lengths uniform in 1..T). The libraries that
are installed take turns; compilation is left out and results are awaited. Writes every figure to
--out and a picture beside it, and prints medians as ratios to this project's. The floor is the time
that a step's products would take at the rate of one large matrix product, measured in between. Exit
status: 0, or 2 for a mistake in the command. Half an hour; with --quick under three minutes, and
then the libraries compile at the same time, so that the seconds that this takes mean little.
"""

import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments import cli

SHAPES = {
    "adding": (32, 100, 2, 64),
    "small": (32, 256, 64, 128),
    "mnist": (64, 784, 1, 128),
    "big": (16, 512, 256, 512),
    "ragged": (32, 256, 64, 128),
}
CELLS = {"rnn": 1, "lstm": 4, "gru": 3}  # and their gates
MEASURES = ("forward", "train")
OURS = "seqmodels"
OPTIONS = {
    "out": cli.Option(str, "benchmark.json", "File of the figures; the picture goes beside it."),
    "libraries": cli.Option(str, "", "Which to time, like linen,torch; default: all installed."),
    "cells": cli.Option(str, ",".join(CELLS), "Which cells."),
    "shapes": cli.Option(str, ",".join(SHAPES), "Which shapes."),
    "rounds": cli.Option(int, 7, "Turns of each library."),
    "seconds": cli.Option(float, 0.5, "How long each turn lasts at least."),
    "quick": cli.Option(bool, False, "Short turns, without mnist and big."),
}


class Worker:
    """A library's process."""

    def __init__(self, library: str):
        self.library = library
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "experiments.benchmark_worker", library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
            env=os.environ | {"JAX_COMPILATION_CACHE_DIR": ""},  # all compile, at every start
        )

    def ask(self, do: str, **request: Any) -> Any:
        self.send(do, **request)
        return self.answer()

    def send(self, do: str, **request: Any) -> None:
        assert self.process.stdin
        self.asked = f"{do} {request}"
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        from experiments.errors import UserError

        assert self.process.stdout
        answer = self.process.stdout.readline()
        if not answer:
            self.said.seek(0)
            last = (self.said.read().strip().splitlines() or ["without a word"])[-1]
            raise UserError(
                f"--libraries: {self.library} ended while asked to {self.asked}: {last}"
            )
        return json.loads(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()  # and closes the pipes
        self.said.close()


def main(
    workdir: Path | None,
    out: str,
    libraries: str,
    cells: str,
    shapes: str,
    rounds: int,
    seconds: float,
    quick: bool,
) -> int:
    from experiments.contenders import LIBRARIES, MODULES
    from experiments.errors import UserError, at_least, one_of
    from experiments.results import write_file

    here = [name for name in LIBRARIES if importlib.util.find_spec(MODULES.get(name, name))]
    chosen = {
        "libraries": (libraries or ",".join(here)).split(","),
        "cells": cells.split(","),
        "shapes": shapes.split(","),
    }
    for option, known in (("libraries", here), ("cells", CELLS), ("shapes", SHAPES)):
        for name in chosen[option]:
            one_of(f"--{option}", name, known)
    at_least("--rounds", rounds, 1)
    at_least("--seconds", seconds, 0.0)
    path = Path(out)
    if workdir:
        raise UserError(f"--workdir={workdir}: figures go to one file, which --out names")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--out={out} cannot be written; give a file in a directory that is there")
    if quick:
        chosen["shapes"] = [name for name in chosen["shapes"] if name not in ("mnist", "big")]
        rounds, seconds = 3, 0.1
        if not chosen["shapes"]:
            raise UserError(f"--shapes={shapes}: --quick leaves these out; drop one of the two")
    workers = [Worker(name) for name in chosen["libraries"]]
    try:
        rows = [
            row
            for shape in chosen["shapes"]
            for cell in chosen["cells"]
            for row in compare(workers, cell, shape, rounds, seconds, together=quick)
        ]
    finally:
        for worker in workers:
            worker.close()
    write_file(path, json.dumps({"rows": rows, "machine": machine()}, indent=1) + "\n")
    draw(rows, path.with_suffix(".png"))
    summarise(rows)
    print(f"figures in {path} and {path.with_suffix('.png')}")
    return 0


def compare(
    workers: list[Worker], cell: str, shape: str, rounds: int, seconds: float, together: bool
) -> list[dict[str, Any]]:
    """One row for each library and measure. The libraries take turns, so that a machine that slows
    down slows all of them; `together` they only compile."""
    sizes = SHAPES[shape]
    facts: dict[Worker, dict[str, Any]] = {}
    for group in [workers] if together else [[worker] for worker in workers]:
        for worker in group:
            worker.send("prepare", cell=cell, shape=sizes, ragged=shape == "ragged")
        facts |= {worker: worker.answer() for worker in group}
    times: dict[Any, list[float]] = {(w, m): [] for w in workers for m in MEASURES}
    rates = []
    for turn in range(rounds):
        rates.append(workers[0].ask("rate"))
        for measure in MEASURES:
            for worker in workers[turn % len(workers) :] + workers[: turn % len(workers)]:
                spent = worker.ask("time", measure=measure, seconds=seconds)
                times[worker, measure].append(spent)
    batch, steps, inputs, features = sizes
    flops = 2 * batch * steps * (inputs + features) * CELLS[cell] * features
    rate = statistics.median(rates)
    rows = []
    for (worker, measure), found in times.items():
        work = flops * (3 if measure == "train" else 1)
        median = statistics.median(found)
        rows.append(
            {
                "library": worker.library,
                "cell": cell,
                "shape": shape,
                "measure": measure,
                "median_ms": median,
                "least_ms": min(found),
                "most_ms": max(found),
                "turns": len(found),
                "gflops": 1e-6 * work / median,
                "floor_ms": 1e-6 * work / rate,
                **facts[worker],
            }
        )
    show(rows)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """One line for each measure, as times and as ratios to ours."""
    for measure in MEASURES:
        mine = [row for row in rows if row["measure"] == measure]
        ours = next((row["median_ms"] for row in mine if row["library"] == OURS), math.nan)
        parts = [
            f"{row['library']} {row['median_ms']:.2f} (x{row['median_ms'] / ours:.2f})"
            for row in mine
        ]
        first = mine[0]
        head = f"{first['shape']} {first['cell']} {measure}, ms:"
        print(head, "  ".join(parts), f" floor {first['floor_ms']:.2f}", flush=True)
    served = (f"{row['library']} {row['note'] or 'its own'}" for row in mine)
    print("    served by:", ", ".join(served), flush=True)


def summarise(rows: list[dict[str, Any]]) -> None:
    """Geometric means of the ratios to ours, and the worst row, for each library."""
    steps = {row["library"]: row["steps_per_call"] for row in rows}
    cores = machine()["cores"]
    print(f"{cores} cores; training steps a call:", ", ".join(f"{k} {n}" for k, n in steps.items()))
    median = {
        (row["library"], row["cell"], row["shape"], row["measure"]): row["median_ms"]
        for row in rows
    }
    for measure in MEASURES:
        for library in dict.fromkeys(row["library"] for row in rows if row["library"] != OURS):
            ratios = {
                f"{cell} {shape}": spent / median[OURS, cell, shape, measure]
                for (name, cell, shape, of), spent in median.items()
                if (name, of) == (library, measure) and (OURS, cell, shape, measure) in median
            }
            if ratios:
                mean = math.exp(statistics.mean(map(math.log, ratios.values())))
                least = min(ratios, key=lambda row: ratios[row])
                print(
                    f"{measure}: {library} takes {mean:.2f} times ours (geometric mean of "
                    f"{len(ratios)}), at least {ratios[least]:.2f} ({least})"
                )


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Milliseconds of a training step, one panel a shape."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    libraries = list(dict.fromkeys(row["library"] for row in rows))
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    figure, axes = plt.subplots(
        1, len(shapes), figsize=(3.2 * len(shapes), 3.2), layout="constrained", squeeze=False
    )
    for shape, ax in zip(shapes, axes[0], strict=True):
        for n, library in enumerate(libraries):
            spent = [
                row["median_ms"]
                for cell in cells
                for row in rows
                if (row["library"], row["shape"], row["cell"], row["measure"])
                == (library, shape, cell, "train")
            ]
            at = [i + (n - len(libraries) / 2) * 0.8 / len(libraries) for i in range(len(spent))]
            ax.bar(at, spent, width=0.8 / len(libraries), label=library)
        ax.set(title=shape, yscale="log", ylabel="ms a training step")
        ax.set_xticks(range(len(cells)), cells)
    axes[0][0].legend(fontsize=7)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def machine() -> dict[str, Any]:
    """What the figures were measured on and with."""
    import platform
    from importlib import metadata

    names = ("jax", "jaxlib", "flax", "dm-haiku", "equinox", "keras", "torch")
    installed = {name: _version(name, metadata) for name in names}
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [
            line.split(":")[1] for line in info.read_text().splitlines() if "model name" in line
        ]
        model = named[0].strip() if named else model
    return {"processor": model, "cores": cli.cores(), "versions": installed}


def _version(name: str, metadata: Any) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    cli.start(main, workdir=None, options=OPTIONS)
