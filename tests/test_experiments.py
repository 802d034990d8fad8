"""Runs and comparisons in work directories: small ones, from end to end."""

import json
import sys

import numpy as np
import pytest
from absl import flags
from ml_collections import ConfigDict, FrozenConfigDict

from configs import base, compare
from experiments import build as building
from experiments import loop
from experiments.errors import UserError
from experiments.results import CLOCKS, Results, as_dict, config_hash, read_rows
from experiments.runs import run_many, run_one

pytestmark = pytest.mark.usefixtures("standard_promotion")  # optax mixes dtypes inside adam
SHIPPED = ("adding", "order", "copy", "parity", "digits", "python_tokens")
CONFIGS = {name: compare.TASKS[name].get_config for name in SHIPPED}


def tiny(cell="rnn", **train):
    """A run of 4 updates on rows of 8 steps."""
    config = base.get_config(cell)
    config.task.length = 8
    config.eval.lengths = (8,)
    config.model.features = 3
    config.train.update({"steps": 4, "eval_every": 2, "batch": 2, "seeds": 2} | train)
    config.eval.update({"batch": 4, "valid_examples": 4, "test_examples": 8})
    return config


def comparison(**runs):
    return ConfigDict({"match_params": 10.0, "seeds": 2, "runs": runs}).lock()


def without_clocks(workdir):
    """All rows, without what depends on the machine."""
    rows = read_rows(workdir / "results.jsonl")
    return [{k: v for k, v in row.items() if k not in CLOCKS} for row in rows]


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def rows_of(workdir, kind):
    """At least one."""
    rows = [row for row in read_rows(workdir / "results.jsonl") if row["kind"] == kind]
    assert rows, f"no {kind} row in {workdir}"
    return rows


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One tiny run that nothing changes afterwards."""
    workdir = tmp_path_factory.mktemp("run") / "tiny"
    import jax

    with jax.numpy_dtype_promotion("standard"):
        assert run_one(tiny(), workdir)
    return workdir


def test_rows_of_a_run_follow_the_schema(finished):
    config = as_dict(tiny())
    assert json.loads((finished / "config.json").read_text()) == config
    rows = read_rows(finished / "results.jsonl")
    assert {row["config"] for row in rows} == {config_hash(config)}
    assert {(row["task"], row["cell"]) for row in rows} == {("adding", "rnn")}
    for kind in ("train", "valid"):
        found = sorted((row["seed"], row["step"]) for row in rows if row["kind"] == kind)
        assert found == [(0, 2), (0, 4), (1, 2), (1, 4)]
    assert [row["weight"] for row in rows_of(finished, "valid")] == [4.0] * 4
    tests, finals = rows_of(finished, "test"), rows_of(finished, "final")
    assert [(row["length"], row["weight"]) for row in tests] == [(8, 8.0)] * 2
    for test, final in zip(tests, finals, strict=True):
        assert final["score"] == test["score"]
        assert final["chance"] == pytest.approx(1 / 6)
        assert final["params"] == 3 * (2 + 3 + 1) + 3 + 1
        assert (final["status"], final["step"], final["solved"]) == ("finished", 4, None)


def test_finished_seeds_are_not_run_again_and_new_ones_are_added(finished, tmp_path, capsys):
    text = (finished / "results.jsonl").read_text()
    assert run_one(tiny(), finished)
    assert (finished / "results.jsonl").read_text() == text
    assert "finished before" in capsys.readouterr().out

    more = tmp_path / "more"
    more.mkdir()
    for name in ("config.json", "results.jsonl"):
        (more / name).write_text((finished / name).read_text())
    assert run_one(tiny(seeds=3), more)
    assert (more / "results.jsonl").read_text().startswith(text)
    assert [row["seed"] for row in rows_of(more, "final")] == [0, 1, 2]
    assert json.loads((more / "config.json").read_text())["train"]["seeds"] == 3


def test_attempt_that_was_killed_is_begun_again_and_ends_the_same(finished, tmp_path):
    """Cut in the middle of a row, before any seed was final."""
    text = (finished / "results.jsonl").read_text()
    (tmp_path / "config.json").write_text((finished / "config.json").read_text())
    (tmp_path / "results.jsonl").write_text(text[: text.index('"final"') // 2])
    assert run_one(tiny(), tmp_path)

    assert without_clocks(tmp_path) == without_clocks(finished)


def test_corrupt_results_are_refused_with_file_and_line(finished, tmp_path):
    lines = (finished / "results.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "config.json").write_text((finished / "config.json").read_text())
    (tmp_path / "results.jsonl").write_text("".join([lines[0], "{oops\n", *lines[1:]]))
    with pytest.raises(UserError, match=r"results\.jsonl:2 is not a row"):
        run_one(tiny(), tmp_path)


def test_directory_of_another_config_is_refused_untouched(finished):
    before = contents(finished)
    other = tiny()
    other.model.features = 5
    with pytest.raises(UserError, match=r"config\.model\.features is 3 there and 5 here"):
        run_one(other, finished)
    assert contents(finished) == before


def test_directory_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        run_one(tiny(), tmp_path)
    below_a_file = tmp_path / "precious.txt" / "run"
    with pytest.raises(UserError, match="workdir"):
        run_one(tiny(), below_a_file)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_K08_one_diverging_arm_is_reported_and_the_others_finish(tmp_path, monkeypatch):
    wild = tiny("rnn")
    wild.label = "wild"
    wild.model.activation = "relu"
    wild.optimizer.update({"name": "sgd", "learning_rate": 1e30, "clip": None})
    broken = tiny()
    broken.label = "broken"
    config = comparison(a_wild=wild, b_broken=broken, c_calm=tiny("lstm"))

    def train_and_test(run, *rest):
        if run.label == "broken":
            raise RuntimeError("out of memory")
        loop.train_and_test(run, *rest)

    monkeypatch.setattr("experiments.runs.train_and_test", train_and_test)
    outcome = run_many(config, tmp_path)
    assert outcome == {"a_wild": "diverged", "b_broken": "failed", "c_calm": "ok"}
    wild, calm = (rows_of(tmp_path / name, "final") for name in ("a_wild", "c_calm"))
    assert [(row["status"], row["score"]) for row in wild] == [("diverged", None)] * len(calm)
    assert len(calm) == 2 and all(np.isfinite(row["score"]) for row in calm)
    assert "out of memory" in (tmp_path / "b_broken" / "error.txt").read_text()
    # The same command again runs what is missing and nothing that is finished.
    monkeypatch.undo()
    before = (tmp_path / "a_wild" / "results.jsonl").read_text()
    assert run_many(config, tmp_path) == {"a_wild": "diverged", "b_broken": "ok", "c_calm": "ok"}
    assert (tmp_path / "a_wild" / "results.jsonl").read_text() == before
    assert not (tmp_path / "b_broken" / "error.txt").exists()


def test_runs_of_unequal_size_are_refused_before_anything_is_written(tmp_path):
    large = tiny("lstm")
    large.model.features = 30
    config = comparison(a=tiny("rnn"), b=large)
    with config.unlocked():
        config.match_params = 0.02
    with pytest.raises(UserError, match=r"config\.runs\.a has 22 parameters and config\.runs\.b"):
        run_many(config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_shipped_comparisons_have_equal_sizes():
    for task in ("adding", "order", "parity", "copy", "digits"):
        sizes = [building.build(CONFIGS[task](cell)).params for cell in base.CELLS]
        assert max(sizes) <= 1.02 * min(sizes), (task, sizes)


@pytest.mark.parametrize("name", SHIPPED)
def test_K02_shipped_configs_freeze_print_and_keep_their_types(name):
    for cell in base.CELLS:
        config = CONFIGS[name](cell)
        frozen = FrozenConfigDict(config)
        assert str(frozen) and ConfigDict(frozen) == config
        assert isinstance(frozen.eval.lengths, tuple)
        assert config.is_locked
        json.dumps(as_dict(config))


def test_K04_notebooks_can_import_and_run(tmp_path, monkeypatch):
    """With a kernel's argv; no module defines or reads a flag when it is imported, twice or not."""
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    for name in ("train", "compare", "report", "cli"):
        module = f"experiments.{name}"
        for _ in range(2):
            sys.modules.pop(module, None)
            __import__(module)
    assert not {"config", "workdir"} & set(flags.FLAGS)
    assert run_one(tiny(seeds=1), tmp_path / "run")


@pytest.mark.parametrize("task", ["adding", "parity"])
def test_K07_untrained_model_scores_near_chance_never_clearly_better(task, tmp_path):
    config = tiny(steps=1, seeds=2)
    if task == "parity":
        base.set_task(config, "parity", (12,), length=12)
    config.optimizer.learning_rate = 0.0
    config.eval.update({"batch": 250, "test_examples": 1000, "valid_examples": 250})
    run_one(config, tmp_path / "run")
    finals = rows_of(tmp_path / "run", "final")
    assert len(finals) == 2
    for row in finals:
        if task == "parity":  # of 1000 answers; a model that answers alike knows nothing
            assert row["chance"] == 0.5 and abs(row["score"] - 0.5) < 0.07
        else:
            assert row["score"] > 0.9 * row["chance"]


def test_stops_when_solved_and_counts_the_steps(tmp_path):
    """A threshold that any model passes: solved at the first validation, confirmed, and stopped."""
    config = tiny(steps=40)
    config.train.update({"solved": 1e6, "stop_when_solved": True})
    run_one(config, tmp_path / "run")
    fields = ("status", "solved", "steps_to_solve", "step")
    finals = [tuple(row[field] for field in fields) for row in rows_of(tmp_path / "run", "final")]
    assert finals == [("solved", True, 2, 2)] * config.train.seeds


def test_results_reader_leaves_out_a_line_cut_short(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"kind": "train", "seed": 0, "step": 2}\n{"kind": "final", "seed": 1')
    assert [row["kind"] for row in read_rows(path)] == ["train"]
    results = Results(tmp_path, as_dict(tiny()), "adding")
    assert results.finished == {}
    results.forget((1,))
    assert path.read_text().count("\n") == 1
