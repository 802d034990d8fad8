"""Training from a notebook, in a process of its own, with a curve that grows while it runs.

Interrupting the cell interrupts the training, which saves and ends; running the cell again goes on
from there. The kernel stays free of the training's memory and devices.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.results import read_rows

ROOT = Path(__file__).parents[1]


def train(workdir: str | Path, config: str, *settings: str, every: float = 2.0) -> int:
    """Runs `experiments.train` and shows validation scores as they come; returns its exit status.

    config    as after --config=, like "configs/adding.py:lstm"
    settings  overrides, like "--config.train.steps=500"
    every     seconds between two looks at the results
    """
    from IPython.display import display

    workdir = Path(workdir).absolute()
    command = [sys.executable, "-m", "experiments.train", f"--config={config}"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:  # a pipe that fills up blocks
        process = subprocess.Popen(
            [*command, f"--workdir={workdir}", *settings],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # or it would get the kernel's interrupt besides ours
        )
        shown = display(_curve(workdir), display_id=True)
        try:
            while process.poll() is None:
                time.sleep(every)
                shown.update(_curve(workdir))
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
        shown.update(_curve(workdir))
        if process.returncode:
            errors.seek(0)
            print(errors.read().strip())
        return process.returncode


def _curve(workdir: Path) -> Any:
    """Validation score against step, one line a seed, and the chance level."""
    from matplotlib.figure import Figure

    path = workdir / "results.jsonl"
    rows = read_rows(path) if path.exists() else []
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    valid = [row for row in rows if row["kind"] == "valid"]
    for seed in sorted({row["seed"] for row in valid}):
        mine = [row for row in valid if row["seed"] == seed]
        steps, scores = zip(*((row["step"], row["score"]) for row in mine), strict=True)
        axes.plot(steps, scores, label=f"seed {seed}")
    metric = next((row["metric"] for row in rows if row["kind"] == "final"), "score")
    axes.set(xlabel="step", ylabel=f"validation {metric}")
    if valid:
        axes.axhline(valid[0]["chance"], color="#666666", linestyle=":", label="chance")
        axes.legend()
    return figure
