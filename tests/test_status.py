"""Exit statuses 0, 1 and 3, what counts as solved, and what makes a run the same run."""

import json

import numpy as np
import pytest
from filelock import FileLock
from test_cli import command
from test_experiments import comparison, contents, rows_of, tiny
from test_resume import newest as newest_of

from experiments import cli, compare, report, runs, train
from experiments.build import build
from experiments.errors import UserError
from experiments.results import Results, as_dict, config_hash, open_workdir


@pytest.fixture
def no_cores(monkeypatch):
    """Devices are chosen before JAX starts, and here it runs."""
    monkeypatch.setattr(cli, "use_cores", lambda *trains: None)


@pytest.mark.parametrize("sound, status", [(True, 0), (False, 3)])
def test_status_of_train(sound, status, no_cores, monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "run_one", lambda config, workdir: sound)
    assert train.main(tmp_path, tiny()) == status


@pytest.mark.parametrize(
    "outcomes, status",
    [
        (["ok", "ok"], 0),
        (["ok", "diverged"], 3),
        (["failed", "ok"], 1),
        (["diverged", "failed"], 1),
    ],
)
def test_status_of_compare(outcomes, status, no_cores, monkeypatch, tmp_path):
    config = comparison(a=tiny(), b=tiny("lstm"))
    monkeypatch.setattr(runs, "run_many", lambda *args: dict(zip("ab", outcomes, strict=True)))
    monkeypatch.setattr(report, "write_report", lambda workdir: None)
    assert compare.main(tmp_path, config) == status


SIZES = (
    "task.length=8 eval.lengths=(8,) model.features=3 train.steps=4 train.eval_every=2 "
    "train.batch=2 train.seeds=2 eval.batch=4 eval.valid_examples=4 eval.test_examples=8"
)
TINY = [f"--config.{setting}" for setting in SIZES.split()]
WILD = [
    "--config.model.activation=relu",
    "--config.optimizer.name=sgd",
    "--config.optimizer.learning_rate=1e30",
    "--config.optimizer.clip=None",
]
TWO_RUNS = """
from configs import base
from ml_collections import ConfigDict
def get_config():
    runs = {name: base.get_config("rnn") for name in ("sound", "broken")}
    for run in runs.values():
        run.update_from_flattened_dict(SETTINGS)
    return ConfigDict({"match_params": 1.0, "seeds": 2, "runs": runs})
"""


@pytest.mark.slow
def test_a_seed_that_diverged_is_status_3_of_the_process(tmp_path):
    done = command(
        "train", "--config=configs/base.py:rnn", f"--workdir={tmp_path / 'run'}", *TINY, *WILD
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert {row["status"] for row in rows_of(tmp_path / "run", "final")} == {"diverged"}


@pytest.mark.slow
def test_a_run_that_failed_is_status_1_of_the_process(tmp_path):
    """Its curves cannot be written: a file is in the way. The other run goes on."""
    settings = {s.split("=")[0]: eval(s.split("=")[1]) for s in SIZES.split()}
    (tmp_path / "two.py").write_text(TWO_RUNS.replace("SETTINGS", repr(settings)))
    flags = [f"--config={tmp_path / 'two.py'}", f"--workdir={tmp_path / 'run'}"]
    assert command("compare", *flags).returncode == 0
    broken = tmp_path / "run" / "broken"
    (broken / "results.jsonl").unlink()
    for path in (broken / "tensorboard", broken / "checkpoints"):
        path.rename(path.with_suffix(".old"))
    (broken / "tensorboard").touch()
    done = command("compare", *flags)
    assert done.returncode == 1, done.stderr
    assert "broken failed; see" in done.stdout and "sound" in done.stdout
    assert len(rows_of(tmp_path / "run" / "sound", "final")) == 2


@pytest.mark.parametrize(
    "metric, score, solved",
    [
        ("accuracy", 0.91, True),
        ("accuracy", 0.9, False),  # past the threshold, not at it
        ("accuracy", 0.89, False),
        ("mse", 0.89, True),
        ("mse", 0.9, False),
        ("mse", 0.91, False),
        ("bits", 0.89, True),
        ("accuracy", float("nan"), False),
        ("mse", float("nan"), False),
    ],
)
def test_solved_is_past_the_threshold(metric, score, solved):
    run = build(tiny())
    assert run._replace(metric=metric, solved=0.9).solves(score) is solved
    assert run._replace(metric=metric, solved=None).solves(score) is False


def test_a_run_is_the_same_whichever_seeds_are_run_and_whatever_is_saved():
    known = config_hash(as_dict(tiny()))
    assert len(known) == 12 and int(known, 16) >= 0
    for same in (tiny(seeds=7), tiny(seed=5), tiny()):
        same.checkpoint.update({"seconds": 1.0, "keep": 3})
        assert config_hash(as_dict(same)) == known
    for other in (tiny("lstm"), tiny(steps=5), tiny(batch=3), tiny(solved=0.1)):
        assert config_hash(as_dict(other)) != known
    both = [comparison(a=tiny(seeds=n)) for n in (2, 3)]
    both[1].seeds = 3
    assert len({config_hash(as_dict(config)) for config in both}) == 1
    turned = dict(reversed(as_dict(tiny()).items()))
    assert json.dumps(turned) != json.dumps(as_dict(tiny())) and config_hash(turned) == known


@pytest.mark.parametrize("there", ["nothing", "a run"])
def test_directory_in_use_stays_as_it_is(there, tmp_path):
    """Not even the seeds asked for are written down, nor is a directory without rows removed."""
    workdir = tmp_path / "run"
    if there == "a run":
        open_workdir(workdir, as_dict(tiny(seeds=2)))
    workdir.mkdir(exist_ok=True)
    with FileLock(workdir / ".lock"):
        before = contents(workdir)
        with pytest.raises(UserError, match="is in use by another process"):
            runs.run_one(tiny(seeds=3), workdir)
        assert contents(workdir) == before


def test_directory_with_a_checkpoint_outlives_an_error(tmp_path):
    """A full disk before the first row: the same command goes on from what was saved."""
    for name, saved in (("empty", False), ("saved", True)):
        workdir = tmp_path / name
        with pytest.raises(OSError, match="full"), runs.begun(workdir, as_dict(tiny())):
            if saved:
                (workdir / "checkpoints/seeds_0/6").mkdir(parents=True)
            raise OSError("full")
        assert workdir.exists() == saved


def test_an_arm_in_use_fails_alone(tmp_path):
    config = comparison(a=tiny(), b=tiny("lstm"))
    open_workdir(tmp_path / "run", as_dict(config))
    (tmp_path / "run/a").mkdir()
    with FileLock(tmp_path / "run/a/.lock"):
        assert runs.run_many(config, tmp_path / "run") == {"a": "failed", "b": "ok"}
    assert "in use by another process" in (tmp_path / "run/a/error.txt").read_text()


def test_seeds_that_ran_on_other_data_are_not_joined(tmp_path):
    rows = [{"kind": "final", "seed": 0, "step": 1, "status": "finished", "score": 1.0}]
    common = {"metric": "mse", "chance": 0.25, "params": 1, "solved": None, "steps_to_solve": None}
    clocks = {"seconds": 1.0, "compile_seconds": 1.0, "device": "cpu"}
    (tmp_path / "results.jsonl").write_text(json.dumps(rows[0] | common | clocks) + "\n")
    results = Results(tmp_path, as_dict(tiny()), "adding")
    results.check_chance(0.25)
    with pytest.raises(UserError, match=r"other data \(chance 0.25 there and 0.5 here\)"):
        results.check_chance(0.5)


def test_D03_diverged_run_keeps_its_last_good_parameters(standard_promotion, tmp_path):
    """Three bad steps in a row: each is skipped, then the seed stops; nothing bad is saved."""
    config = tiny("rnn", steps=12, eval_every=5, steps_per_call=2)
    config.label = "wild"
    config.model.activation = "relu"
    config.optimizer.update({"name": "sgd", "learning_rate": 1e30, "clip": None})
    config.train.max_bad_steps = 3
    assert not runs.run_one(config, tmp_path / "run")
    finals = rows_of(tmp_path / "run", "final")
    assert [row["status"] for row in finals] == ["diverged"] * 2
    assert all(row["step"] < 12 for row in finals)
    ((leaves, _),) = newest_of(tmp_path / "run").values()
    assert leaves["bad_steps"].tolist() == [3, 3]
    assert all(np.isfinite(leaf).all() for name, leaf in leaves.items() if "params" in name)
