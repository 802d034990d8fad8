"""One library in a process of its own, driven by `experiments.benchmark` through its pipes.

Each line that comes in is a JSON request, each line that goes out its answer:

    {"do": "prepare", "cell", "shape", "ragged"}  compiles, runs each measure once
    {"do": "time", "measure", "seconds"}          calls for at least so long -> ms a step
    {"do": "rate"}                                of a large matrix product, GFLOP/s
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments import cli
from experiments.benchmark_ours import Problem
from experiments.contenders import LIBRARIES


def problem_of(cell: str, shape: list[int], ragged: bool) -> Problem:
    """Random numbers of the shape (B, T, E, H); lengths uniform in 1..T if ragged."""
    batch, steps, inputs, features = shape
    rng = np.random.default_rng(0)
    return Problem(
        cell,
        features,
        rng.normal(size=(batch, steps, inputs)).astype(np.float32),
        rng.normal(size=(batch, 1)).astype(np.float32),
        rng.integers(1, steps + 1, size=batch).astype(np.int32) if ragged else None,
    )


def prepare(library: str, cell: str, shape: list[int], ragged: bool) -> tuple[Any, dict[str, Any]]:
    began = time.perf_counter()
    contender = LIBRARIES[library](problem_of(cell, shape, ragged))
    contender.train()
    first = time.perf_counter() - began
    _forget_peak()  # that of the compiler
    began = time.perf_counter()
    contender.train()
    again = time.perf_counter() - began
    peak = _peak()  # of one call of training, with all that the process holds
    contender.forward()
    return contender, {
        "steps_per_call": contender.steps,
        "note": contender.note,
        "first_step_seconds": first,  # building, compiling and one call
        "compile_seconds": max(0.0, first - again),
        "peak_mb": peak,
    }


def milliseconds(contender: Any, measure: str, seconds: float) -> float:
    """Of one step, over calls that last at least so long together."""
    call = getattr(contender, measure)
    calls, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds or not calls:
        call()
        calls += 1
    steps = contender.steps if measure == "train" else 1
    return 1e3 * passed / (calls * steps)


def rate(size: int = 1536) -> float:
    """GFLOP/s of a product of two matrices [size, size] in float32, with all cores."""
    import jax

    a = jax.random.normal(jax.random.key(0), (size, size))
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        product(a).block_until_ready()
        times.append(time.perf_counter() - began)
    return 2e-9 * size**3 / min(times)


def _forget_peak() -> None:
    """Linux starts its record of the largest resident set anew."""
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> float:
    """Megabytes of the largest resident set."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if "VmHWM" in line)
        return int(line.split()[1]) / 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 1024)


def main(library: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer
    if library == "seqmodels":
        import jax

        jax.config.update("jax_num_cpu_devices", cli.cores())
    contender: Any = None
    answer: Any
    for line in sys.stdin:
        request = json.loads(line)
        do = request.pop("do")
        if do == "prepare":
            contender = None  # the one before gives its memory back
            contender, answer = prepare(library, **request)
        else:
            answer = milliseconds(contender, **request) if do == "time" else rate()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
