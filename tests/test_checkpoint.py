"""Checkpoints: what is restored is what was saved, and anything else is refused by its name."""

import gc
import logging
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.checkpoint import Checkpoints, newest, place, read
from experiments.errors import UserError

ROOT = Path(__file__).parents[1]


def saved(tmp_path, tree):
    """`tree` in a checkpoint at step 1, reopened."""
    for _ in range(2):
        found = Checkpoints(tmp_path, (0,), {"label": "lstm"})
        found.save(1, tree, dict)
        found.close()
    return Checkpoints(tmp_path, (0,), {"label": "lstm"})


TREE = {"a": np.zeros((2, 3), np.float32), "b": (np.arange(3, dtype=np.int32), jax.random.key(0))}


@pytest.mark.parametrize(
    "like, says",
    {
        "missing": ({**TREE, "c": np.zeros(2)}, "leaf c is missing"),
        "extra": ({"b": TREE["b"]}, "leaf a is not one of this run's"),
        "reshaped": (
            {**TREE, "a": np.zeros((3, 2), np.float32)},
            r"leaf a is float32\[2, 3\] there",
        ),
        "retyped": ({**TREE, "a": np.zeros((2, 3), np.float16)}, r"float16\[2, 3\] here"),
        "restructured": ({**TREE, "b": list(TREE["b"])}, "the state is built otherwise"),
        "other kind of key": (
            {**TREE, "b": (TREE["b"][0], jax.random.key(0, impl="unsafe_rbg"))},
            r"leaf b\.1 is uint32\[2\] there and uint32\[4\] here",
        ),
    }.values(),
)
def test_restoring_refuses_any_other_leaf(like, says, tmp_path):
    found = saved(tmp_path, TREE)
    with pytest.raises(UserError, match=says):
        found.restore(like)
    found.close()


def test_I04_restored_leaves_and_draws_are_the_same(tmp_path):
    found = saved(tmp_path, TREE)
    tree, notes = found.restore(jax.eval_shape(lambda: TREE))
    found.close()
    np.testing.assert_array_equal(tree["a"], TREE["a"])
    assert tree["a"].dtype == np.float32 and notes["seeds"] == [0]
    draws = [jax.random.normal(key, (3,)) for key in (tree["b"][1], TREE["b"][1])]
    np.testing.assert_array_equal(*draws)


def test_F01_I05_checkpoint_of_another_config_names_the_field(tmp_path):
    saved(tmp_path, TREE).close()
    other = Checkpoints(tmp_path, (0,), {"label": "gru"})
    with pytest.raises(UserError, match=r"another config \(config.label is 'lstm' there and 'gru'"):
        other.restore(TREE)
    other.close()


def test_reading_back_says_and_changes_nothing(tmp_path, caplog):
    """A notebook shows every warning; and the run may still be going on."""
    directory = place(tmp_path, (0,))
    assert newest(directory) is None
    saved(tmp_path, TREE).close()
    (directory / "2.orbax-checkpoint-tmp-0").mkdir()  # a save under way
    before = {*tmp_path.rglob("*")}
    gc.collect()  # or a manager of another test may speak as it goes
    caplog.clear()
    leaves, notes = read(directory, newest(directory))
    np.testing.assert_array_equal(leaves["a"], TREE["a"])
    assert notes["config"] == {"label": "lstm"}
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in warned] == []
    assert {*tmp_path.rglob("*")} == before


def test_the_newest_checkpoints_stay(tmp_path):
    found = Checkpoints(tmp_path, (0,), {}, keep=2)
    for step in range(1, 5):
        found.save(step, {"a": np.full(1, step)}, dict)
    found.close()
    kept = {int(p.name) for p in (tmp_path / "checkpoints/seeds_0").glob("[0-9]*")}
    assert kept == {3, 4}


FAILING = """
import shutil, sys
from pathlib import Path
from experiments import cli
from experiments.checkpoint import Checkpoints
def main():
    work = Path(sys.argv[1])
    saved = Checkpoints(work, (0,), {})
    shutil.rmtree(work / "checkpoints/seeds_0")
    (work / "checkpoints/seeds_0").write_text("in the way")
    saved.save(1, {"a": __import__("numpy").zeros(3)}, dict)
    saved.close()
    print("saved")
cli.guarded(main)
"""


@pytest.mark.slow
def test_I01_save_that_fails_in_the_background_is_said_at_the_end(tmp_path):
    command = [sys.executable, "-c", FAILING, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ended.returncode == 2 and "saved" not in ended.stdout
    assert "seeds_0" in ended.stderr and "error:" in ended.stderr
