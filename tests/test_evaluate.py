"""The command `evaluate`: the scores of a run's own test again, split into groups that add up."""

import json
import math
import shutil

import jax
import numpy as np
import pytest
from placed import Placed
from test_cli import command, refused
from test_experiments import comparison, contents, rows_of, tiny
from test_generate import with_value, without
from test_resume import SOURCES, interrupted_after
from test_streams import TEXT, letters

from configs.base import set_task
from experiments import evaluate as evaluating
from experiments import evaluation, streams
from experiments.errors import UserError
from experiments.evaluation import evaluate
from experiments.results import as_dict
from experiments.runs import run_one
from experiments.signals import Interrupted
from seqmodels.data.prepare import DATA_DIR_VARIABLE
from seqmodels.data.python_tokens import PythonTokens

pytestmark = pytest.mark.usefixtures("standard_promotion")


def drawn(place, **train):
    """Fresh rows, tested at two lengths."""
    config = tiny(steps_per_call=1, **train)
    config.eval.lengths = (8, 12)
    return config


def rows(place, **train):
    """Windows of source files."""
    config = tiny(batch=4, **train)
    set_task(config, "python_tokens", window=32, source_dir=str(place / "sources"))
    config.model.update({"readout": None, "embedding": 2})
    return config


def stream(place, **train):
    """Bytes, read while the model computes."""
    return letters(place / "text.txt", steps=4, eval_every=2, **train)


EVERY = {
    "drawn": lambda place: drawn(place),
    "best": lambda place: drawn(place, steps=8, eval_every=1, average=0.5, test="best"),
    "average": lambda place: drawn(place, average=0.9),
    "rows": lambda place: rows(place),
    "stream": lambda place: stream(place),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of each kind, of seeds 0 and 1, made when it is first asked for."""
    place = tmp_path_factory.mktemp("trained")
    (place / "sources").mkdir()
    for name, text in SOURCES.items():
        (place / "sources" / name).write_text(text)
    (place / "text.txt").write_text(TEXT)

    def find(name):
        if not (place / name).exists():
            with jax.numpy_dtype_promotion("standard"):
                run_one(EVERY[name](place), place / name)
        return place / name

    return find


def totals(found, seed):
    """Weight, and weighted means of loss and score, over all groups of one seed."""
    mine = [row for row in found if row["seed"] == seed and row["weight"]]
    weights = [row["weight"] for row in mine]
    means = (np.average([row[name] for row in mine], weights=weights) for name in ("loss", "score"))
    return sum(weights), *means


@pytest.mark.parametrize(
    "name", ["drawn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("best", "average"))]
)
def test_a_task_is_scored_on_the_rows_of_its_test(name, trained):
    run = trained(name)
    found = evaluate(run)
    tests = sorted(rows_of(run, "test"), key=lambda row: (row["seed"], row["length"]))
    for row, test in zip(found, tests, strict=True):
        assert (row["seed"], row["length"]) == (test["seed"], str(test["length"]))
        assert row["rows"] == row["weight"] == test["weight"] == 8
        for field in ("loss", "score", "chance"):
            assert row[field] == pytest.approx(test[field], rel=1e-6), field
    assert {row["metric"] for row in found} == {row["metric"] for row in rows_of(run, "final")}
    assert "perplexity" not in found[0]


def test_a_seed_that_diverged_has_no_score(tmp_path, capsys):
    """The parameters of its last good step are those of no trained model."""
    config = drawn(tmp_path, seeds=2)
    config.model.activation = "relu"
    config.optimizer.update({"name": "sgd", "learning_rate": 1e30, "clip": None})
    assert not run_one(config, tmp_path / "run")
    found = evaluate(tmp_path / "run")
    assert len(found) == 4 and all(row["diverged"] for row in found)
    assert all((row["score"], row["loss"], row["weight"]) == (None, None, 0) for row in found)
    capsys.readouterr()
    evaluation.show(found)
    assert capsys.readouterr().out.count("diverged") == 4


@pytest.mark.parametrize("name", ["rows", "stream"])
def test_groups_add_up_to_the_test_of_the_run(name, trained):
    run = trained(name)
    found = evaluate(run)
    for test in rows_of(run, "test"):
        weight, loss, score = totals(found, test["seed"])
        assert weight == test["weight"]
        assert loss == pytest.approx(test["loss"], rel=1e-6)
        assert score == pytest.approx(test["score"], rel=1e-6)
    for row in found:
        assert row["perplexity"] == pytest.approx(math.exp(row["loss"]), rel=1e-12)
        assert row["chance"] == rows_of(run, "final")[0]["chance"]


def test_groups_hold_each_row_once_whatever_their_widths(trained):
    run = trained("rows")
    lengths = PythonTokens(32, run.parent / "sources").load("test").lengths
    usual = evaluate(run, seed=1)
    for widths in ((), (6, 40, 31)):
        found = evaluate(run, widths=widths, seed=1)
        edges = np.array(sorted(widths) or [1, 2, 4, 8, 16, 32])
        names, counts = np.unique(edges[np.searchsorted(edges, lengths)], return_counts=True)
        assert len(names) > 1
        assert [row["length"] for row in found] == [f"up to {name}" for name in names]
        assert [row["rows"] for row in found] == counts.tolist()
        assert totals(found, 1) == pytest.approx(totals(usual, 1), rel=1e-6)


@pytest.mark.parametrize("name", ["rows", "stream"])
def test_other_splits_are_scored_as_validation_scored_them(name, trained):
    run = trained(name)
    found = evaluate(run, "valid")
    for valid in rows_of(run, "valid")[-2:]:
        weight, loss, _ = totals(found, valid["seed"])
        assert weight == valid["weight"] and loss == pytest.approx(valid["loss"], rel=1e-6)


def test_a_stream_is_not_held_as_a_whole(trained, monkeypatch):
    """Parts of two chunks, of which the next is read when the one before was scored."""
    run, read = trained("stream"), []
    usual = evaluate(run, "train", seed=0)
    original = streams.Streamed.parts

    def parts(self, *split):
        for part in original(self, *split):
            read.append(part.batches)
            yield part

    def summed(*given, original=jax.device_get):
        read.append("scored")
        return original(*given)

    monkeypatch.setattr(streams, "EVAL_CHUNKS", 2)
    monkeypatch.setattr(streams.Streamed, "parts", parts)
    monkeypatch.setattr(jax, "device_get", summed)
    found = evaluate(run, "train", seed=0)
    assert read[: 2 * (len(read) // 2)] == [2, "scored"] * (len(read) // 2) and len(read) > 8
    assert found[0]["weight"] == usual[0]["weight"]
    assert found[0]["loss"] == pytest.approx(usual[0]["loss"], rel=1e-6)


def test_other_lengths_than_in_training(trained):
    run = trained("drawn")
    found = evaluate(run, lengths=(12, 50, 8), seed=0)
    assert [row["length"] for row in found] == ["12", "50", "8"]
    own = evaluate(run, seed=0)
    assert (found[0], found[2]) == (own[1], own[0])
    assert found[1]["rows"] == 8 and math.isfinite(found[1]["loss"])
    assert found[1]["loss"] not in (own[0]["loss"], own[1]["loss"])


def test_one_seed_is_scored_alone_as_with_the_others(trained):
    run = trained("drawn")
    every = evaluate(run)
    assert [row["seed"] for row in every] == [0, 0, 1, 1]
    assert evaluate(run, seed=1) == every[2:]
    assert every[2]["loss"] != every[0]["loss"]


def test_a_run_that_was_interrupted_is_scored_at_its_checkpoint(tmp_path, monkeypatch):
    config = drawn(tmp_path, steps=40, eval_every=2)
    with monkeypatch.context() as patch:
        interrupted_after(3, patch)
        with pytest.raises(Interrupted):
            run_one(config, tmp_path / "run")
    before = contents(tmp_path / "run")
    found = evaluate(tmp_path / "run")
    assert {row["step"] for row in found} == {4}
    assert contents(tmp_path / "run") == before, "nothing but a reader"


@pytest.mark.slow
def test_rows_without_a_scored_step_are_counted_and_have_no_score(tmp_path, monkeypatch):
    """A piece of one frame, of which nothing is asked."""
    placed = Placed("music", tmp_path, monkeypatch)
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(placed.data_dir))
    config = tiny(steps=1, seeds=1)
    set_task(config, "music", set="jsb")
    config.model.readout = None
    run_one(config, tmp_path / "run")
    found = evaluate(tmp_path / "run", "train", widths=(1, 16, 32))
    assert [(row["rows"], row["weight"]) for row in found] == [(1, 0.0), (1, 8.0), (1, 29.0)]
    assert found[0]["loss"] is None and found[0]["score"] is None
    assert all(math.isfinite(row["loss"]) for row in found[1:])


# What does not fit.


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("drawn", {"split": "dev"}, "--split=dev is unknown (allowed: train, valid, test)"),
        ("drawn", {"split": "valid"}, "--split=valid is for data sets; adding draws fresh rows"),
        ("drawn", {"widths": (8,)}, "--widths is for data sets of rows; adding has none"),
        ("drawn", {"lengths": (1,)}, "--lengths: "),
        ("drawn", {"seed": 5}, "--run_seed=5 has no checkpoint"),
        ("rows", {"lengths": (8,)}, "--lengths is for tasks; python_tokens is a data set"),
        ("rows", {"widths": (8, 16)}, "--widths: the longest row has 32 steps"),
        ("stream", {"lengths": (8,)}, "--lengths is for tasks; text_files is a data set"),
        ("stream", {"widths": (8,)}, "--widths is for data sets of rows; text_files has none"),
    ],
)
def test_options_that_do_not_apply_are_one_line(name, options, words, trained):
    with pytest.raises(UserError) as caught:
        evaluate(trained(name), **options)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


def of_a_comparison(run):
    (run / "config.json").write_text(json.dumps(as_dict(comparison(one=tiny()))))


@pytest.mark.parametrize(
    "spoil, words",
    {
        "comparison": (of_a_comparison, ["is a comparison", "one run in it: one"]),
        "no checkpoint": (lambda run: shutil.rmtree(run / "checkpoints"), ["has no checkpoint"]),
        "fewer fields": (without("train.accumulate"), ["config.train.accumulate is missing"]),
        "fewer of the model": (without("model.dtype"), ["config.model.dtype is missing"]),
        "one too many": (
            with_value("optimizer", "nesterov", True),
            ["config.json: config.optimizer.nesterov is read by nothing"],
        ),
        "impossible": (with_value("train", "batch", 0), ["config.train.batch=0"]),
        "edited": (with_value("train", "batch", 3), ["config.train.batch is 2 there and 3 here"]),
    }.values(),
)
def test_a_directory_that_cannot_serve_is_one_line(spoil, words, trained, tmp_path):
    shutil.copytree(trained("drawn"), tmp_path / "run")
    spoil(tmp_path / "run")
    with pytest.raises(UserError) as caught:
        evaluate(tmp_path / "run")
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


# The command.


def test_the_command_shows_and_writes_what_was_found(trained):
    run = trained("drawn")
    done = command("evaluate", f"--workdir={run}", "--lengths=8,30")
    assert done.returncode == 0, done.stderr
    written = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    assert written == evaluate(run, lengths=(8, 30))
    for row in written:
        for field in ("seed", "length", "rows", "loss", "score", "chance"):
            value = row[field]
            assert (f"{value:.4g}" if isinstance(value, float) else str(value)) in done.stdout


def test_what_is_not_finite_is_null(trained, monkeypatch, capsys):
    run, found = trained("drawn"), evaluate(trained("drawn"), seed=0)
    found[0] |= {"loss": math.inf, "score": math.nan}
    monkeypatch.setattr("experiments.evaluation.evaluate", lambda *a, **k: found)
    assert evaluating.main(run, "test", "", "", None) == 0
    text = (run / "evaluation.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert [json.loads(line)["score"] for line in text.splitlines()] == [None, found[1]["score"]]
    assert "nan" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--lengths=8,x", "--lengths=0", "--widths=-3", "--length=8"])
def test_K06_mistakes_on_the_command_line_are_one_line(flag, trained):
    run = trained("drawn")
    before = contents(run)
    refused(command("evaluate", f"--workdir={run}", flag), flag.split("=")[0].strip("-"))
    assert contents(run) == before
