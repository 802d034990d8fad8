"""Interrupted runs end as the uninterrupted one: rows, parameters, moments, carry, data order."""

import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from test_experiments import contents, rows_of, tiny, without_clocks

from experiments import checkpoint, loop, runs
from experiments.errors import UserError
from experiments.runs import run_one
from experiments.signals import Interrupted, Stop

pytestmark = pytest.mark.usefixtures("standard_promotion")  # optax mixes dtypes inside adam
ROOT = Path(__file__).parents[1]
SOURCES = {
    f"m{n}.py": f"def f{n}(x):\n    return 'text {n}' * x  # {n}\n" * (n % 7 + 1) for n in range(60)
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    place = tmp_path_factory.mktemp("sources")
    for name, text in SOURCES.items():
        (place / name).write_text(text)
    return str(place)


def drawn(sources):
    """Fresh rows; a call border inside the interval between validations."""
    config = tiny("lstm", steps=12, eval_every=5, steps_per_call=2)
    config.train.weight_noise = 0.1
    return config


def labelled(sources, **train):
    """Windows of source files, with all that can be carried along."""
    config = tiny("gru", steps=20, eval_every=6, steps_per_call=3, batch=4)
    with config.unlocked():
        config.task = {"name": "python_tokens", "window": 32, "source_dir": sources}
        del config.eval.valid_examples, config.eval.test_examples
    config.eval.lengths = ()
    config.model.update({"readout": None, "embedding": 4, "head_dropout": 0.2})
    config.optimizer.update({"learning_rate": 0.03, "schedule": "cosine"})
    config.train.update({"accumulate": 2, "average": 0.9, "test": "best", "patience": 1})
    config.train.update({"drops": 9, "drop_factor": 0.5} | train)
    return config


def bucketed(sources):
    """Epochs of a few updates, in buckets."""
    return labelled(sources, buckets=(8, 16, 32), batch=64)


def streamed(sources):
    """Truncated backpropagation over several epochs."""
    config = labelled(sources, chunk=40, batch=16)
    config.task.window = None
    return config


EVERY = {f.__name__: f for f in (drawn, bucketed, streamed)}


def newest(workdir):
    """Leaves and notes of the newest checkpoint of each group of seeds."""
    places = {seeds: checkpoint.place(workdir, seeds) for seeds in checkpoint.groups(workdir)}
    return {s: checkpoint.read(place, checkpoint.newest(place)) for s, place in places.items()}


def assert_same_end(one, other):
    assert without_clocks(one) == without_clocks(other)
    for (leaves, notes), (expected, wanted) in zip(
        newest(one).values(), newest(other).values(), strict=True
    ):
        assert leaves.keys() == expected.keys()
        for path, leaf in leaves.items():
            np.testing.assert_array_equal(leaf, expected[path], err_msg=path)
        for name in ("step", "sums", "order", "solved", "seeds", "structure", "digest"):
            assert notes[name] == wanted[name], name


@pytest.fixture(scope="module")
def whole(sources, tmp_path_factory):
    """name -> the directory of that run without an interruption."""
    place = tmp_path_factory.mktemp("whole")

    @functools.cache
    def run(name):
        with jax.numpy_dtype_promotion("standard"):
            run_one(EVERY[name](sources), place / name)
        return place / name

    return run


def interrupted_after(calls, monkeypatch):
    """From now on a run is told to end while its call number `calls` is under way."""
    stop, count = Stop(), 0

    def feed(*args):
        nonlocal count
        count += 1
        if count > calls:
            stop.number = signal.SIGTERM
        return original(*args)

    original = loop.feed
    monkeypatch.setattr(loop, "feed", feed)
    monkeypatch.setattr(runs, "listening", lambda: contextlib.nullcontext(stop))


@pytest.mark.parametrize(
    "name",
    ["drawn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bucketed", "streamed"))],
)
def test_I09_interrupted_run_equals_uninterrupted_run(name, sources, whole, tmp_path):
    config, times = EVERY[name](sources), 0
    for calls in (1, 0, 2, 1, 100):  # an interruption right after the start among them
        with pytest.MonkeyPatch.context() as patch:
            interrupted_after(calls, patch)
            try:
                run_one(config, tmp_path / "run")
            except Interrupted as error:
                assert error.number == signal.SIGTERM
                times += 1
    assert times >= 3
    assert_same_end(tmp_path / "run", whole(name))


def test_D07_learning_rate_follows_the_updates_after_a_resume(whole):
    trained = rows_of(whole("streamed"), "train")
    assert trained
    for row in trained:
        cosine = 0.03 * (1 + np.cos(np.pi * (row["step"] - 1) / 20)) / 2
        allowed = [pytest.approx(cosine * 0.5**drops, rel=1e-4) for drops in range(4)]
        assert any(row["learning_rate"] == rate for rate in allowed), row


def test_G04_I12_every_epoch_is_whole_and_starts_from_the_initial_carry(sources):
    from experiments.build import build

    source = build(streamed(sources)).source
    per_epoch = source.per_epoch
    ids = source.ids(0, 0, 3 * per_epoch)
    assert ids.reshape(3, -1).tolist() == [list(range(2 * per_epoch))] * 3
    first = source.draw(None)(None, ids[per_epoch, 0], source.data)
    assert np.asarray(first.reset)[:, 0].all()


def damage(path):
    """Other bytes in the middle of the largest file below."""
    largest = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    middle = largest.stat().st_size // 2
    with largest.open("r+b") as file:
        file.seek(middle)
        old = file.read(16)
        file.seek(middle)
        file.write(bytes(255 - b for b in old))


def stopped_with_two(sources, workdir, monkeypatch, seeds=2):
    config = drawn(sources)
    config.train.seeds = seeds
    config.checkpoint.update({"seconds": 0.0, "keep": 2})
    with monkeypatch.context() as patch:
        interrupted_after(3, patch)
        with pytest.raises(Interrupted):
            run_one(config, workdir)
    place = checkpoint.place(workdir, tuple(range(seeds)))
    steps = sorted(int(p.name) for p in place.glob("[0-9]*"))
    assert len(steps) >= 2
    return config, steps


def test_checkpoints_that_are_always_due_come_after_every_call(sources, whole, tmp_path):
    config = drawn(sources)
    config.checkpoint.update({"seconds": 0.0, "keep": 100})
    run_one(config, tmp_path / "run")
    steps = sorted(int(p.name) for p in (tmp_path / "run/checkpoints/seeds_0_1").glob("[0-9]*"))
    assert steps == [2, 4, 5, 6, 8, 10, 12]
    assert_same_end(tmp_path / "run", whole("drawn"))


@pytest.mark.parametrize("how", ["bytes", "missing", "empty"])
def test_damaged_newest_checkpoint_falls_back_loudly(
    how, sources, whole, tmp_path, monkeypatch, capsys
):
    config, steps = stopped_with_two(sources, tmp_path / "run", monkeypatch)
    place = tmp_path / "run/checkpoints/seeds_0_1" / str(steps[-1])
    if how == "bytes":
        damage(place / "state")
    elif how == "missing":
        shutil.rmtree(place / "notes")
    else:
        for path in (place / "state").rglob("*"):
            if path.is_file():
                path.write_bytes(b"")
    capsys.readouterr()
    run_one(config, tmp_path / "run")
    said = capsys.readouterr().out
    assert f"checkpoint {place} is damaged" in said and "set aside" in said
    assert f"goes on at step {steps[-2]}/12" in said
    assert without_clocks(tmp_path / "run")[:-2] == without_clocks(whole("drawn"))[:-2]
    assert (tmp_path / "run/checkpoints/damaged" / f"seeds_0_1_{steps[-1]}").exists()


def test_no_sound_checkpoint_is_an_error_that_touches_nothing_else(sources, tmp_path, monkeypatch):
    config, steps = stopped_with_two(sources, tmp_path / "run", monkeypatch)
    for step in steps:
        shutil.rmtree(tmp_path / "run/checkpoints/seeds_0_1" / str(step) / "state")
    before = (tmp_path / "run/results.jsonl").read_bytes()
    for _ in range(2):  # the second finds them set aside
        with pytest.raises(UserError, match="every checkpoint is damaged; choose another"):
            run_one(config, tmp_path / "run")
    assert (tmp_path / "run/results.jsonl").read_bytes() == before


def test_I07_unfinished_seeds_cannot_be_dropped(sources, tmp_path, monkeypatch):
    config, _ = stopped_with_two(sources, tmp_path / "run", monkeypatch)
    before = contents(tmp_path / "run" / "checkpoints")
    config.train.seeds = 1
    with pytest.raises(UserError, match=r"unfinished run of seeds \[0, 1\]"):
        run_one(config, tmp_path / "run")
    assert contents(tmp_path / "run" / "checkpoints") == before


@pytest.mark.slow
def test_I03_seeds_saved_on_two_devices_restore_on_one(sources, whole, tmp_path, monkeypatch):
    """No device is named in a checkpoint; which seed runs where does not matter. Three seeds on two
    devices are filled up to four, on one they are not."""
    config, _ = stopped_with_two(sources, tmp_path / "run", monkeypatch, seeds=3)
    leaves, _ = newest(tmp_path / "run")[0, 1, 2]
    assert len(leaves["step"]) == 3
    devices = jax.local_devices()
    assert len(devices) == 2
    monkeypatch.setattr(jax, "local_devices", lambda: devices[:1])
    run_one(config, tmp_path / "run")
    finals = rows_of(tmp_path / "run", "final")
    assert len(finals) == 3
    for mine, other in zip(finals, rows_of(whole("drawn"), "final"), strict=False):
        assert mine["score"] == pytest.approx(other["score"], rel=1e-4)


# Real processes and real signals.

PROGRAM = """
import sys
from test_resume import EVERY
from experiments import cli
from experiments.runs import run_one
def main():
    config = EVERY[sys.argv[1]](sys.argv[2])
    cli.use_cores(config.train)
    config.checkpoint.seconds = 0.0
    config.train.steps_per_call = 1
    run_one(config, __import__("pathlib").Path(sys.argv[3]))
cli.guarded(main)
"""


def start(name, sources, workdir):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, sources, str(workdir)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# What reads a process that is killed may be left open by it, which is no fault of the run's.
killing = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def ended(process):
    output, _ = process.communicate()
    return process.returncode, output


@pytest.mark.slow
@killing
@pytest.mark.parametrize("name", EVERY)
def test_killed_at_random_points_ends_the_same(name, sources, tmp_path):
    began = time.perf_counter()
    assert ended(start(name, sources, tmp_path / "whole"))[0] == 0
    usual = time.perf_counter() - began
    chance = random.Random(name)
    for _ in range(20):
        process = start(name, sources, tmp_path / "run")
        time.sleep(chance.uniform(0.1, 1.0) * usual)
        process.kill()
        ended(process)
    status, output = ended(start(name, sources, tmp_path / "run"))
    assert status == 0, output
    assert_same_end(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
@killing
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_exit_with_their_status(number, sources, tmp_path):
    """While it compiles, and after so many rows."""
    assert ended(start("streamed", sources, tmp_path / "whole"))[0] == 0
    seen, run = set(), tmp_path / "run"
    for rows in (0, 1, 5, 9):
        process = start("streamed", sources, run)
        while process.poll() is None and not _begun(run, rows):
            time.sleep(0.01)
        process.send_signal(number)
        status, output = ended(process)
        seen.add(status)
        if "test accuracy" not in output:  # else it was on its way out
            assert status == 128 + number, output
            assert "Traceback" not in output
    assert 128 + number in seen
    assert ended(start("streamed", sources, tmp_path / "run"))[0] == 0
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def _begun(run, rows):
    path = run / "results.jsonl"
    if not rows:
        return (run / ".lock").exists()
    return path.exists() and path.read_bytes().count(b"\n") >= rows
