"""Work directories that somebody or something changed: one line that names the file and place."""

import json

import pytest
from ml_collections import ConfigDict
from test_experiments import comparison, contents, tiny
from test_report import ADDING, write_all, write_run

from configs import base, compare
from experiments import runs
from experiments.errors import UserError
from experiments.report import write_report
from experiments.results import SCHEMA, as_dict, read_rows
from experiments.runs import run_many


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """Whatever is wrong has to be found before the first run starts."""

    def start(run, *rest):
        raise AssertionError(f"{run.label} started")

    monkeypatch.setattr(runs, "_run", start)


def refused(function, *args):
    """The one line, with which nothing was written."""
    with pytest.raises(UserError) as caught:
        function(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


NAMES = ["/tmp/x", "..", ".", "../up", "a/b", "a\\b", "nul\0", ".hidden", "", "line\n", "x" * 99]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_runs_are_those_of_directories_in_the_work_directory(name, tmp_path):
    assert f"config.runs has a run {name!r}" in refused(runs.check_name, name)
    if "." not in name:  # which a ConfigDict refuses by itself
        config = ConfigDict({"match_params": 10.0, "seeds": 2, "runs": {name: tiny()}})
        assert f"{name!r}" in refused(run_many, config, tmp_path / "new")
        assert not [*tmp_path.iterdir()]


def change(path, function):
    """The file with its JSON changed by `function`, which may return something else for it."""
    value = json.loads(path.read_text())
    path.write_text(json.dumps(function(value) or value) + "\n")


def without(*fields):
    """What takes a field out of nested dicts."""

    def take(value):
        for field in fields[:-1]:
            value = value[field]
        del value[fields[-1]]

    return take


FINAL = {
    "status": "finished",
    "step": 4,
    "score": 0.1,
    "metric": "mse",
    "chance": 0.2,
    "params": 22,
    "solved": None,
    "steps_to_solve": None,
    "seconds": 1.0,
    "compile_seconds": 1.0,
    "device": "cpu",
}
ROW = {"kind": "final", "seed": 0, **FINAL}


@pytest.mark.parametrize(
    "name, spoil, words",
    [
        ("config.json", lambda path: path.write_text("{"), "is not JSON"),
        ("config.json", lambda path: path.write_bytes(b"\xff\xfe"), "is not JSON"),
        ("config.json", lambda path: path.write_text("[]"), "is no config of a run"),
        ("config.json", lambda path: path.write_text('{"train": 5}'), "is no config of a run"),
        ("config.json", lambda path: path.write_text('{"runs": []}'), "is no config of a run"),
        ("config.json", lambda path: change(path, without("model")), "config.model is absent"),
        ("config.json", lambda path: path.unlink(), "is not empty and holds no run"),
        ("results.jsonl", lambda path: path.write_text("nonsense\n"), ":1 is not a row"),
        ("results.jsonl", lambda path: change(path, without("score")), ":1: score of this final"),
        ("results.jsonl", lambda path: change(path, lambda row: {"kind": "x"}), ":1 is not a row"),
    ],
)
def test_a_damaged_arm_is_found_before_any_arm_starts(name, spoil, words, tmp_path):
    config = comparison(a=tiny(), b=tiny("lstm"))
    plain = as_dict(config)
    runs.open_workdir(tmp_path, plain)
    for arm in ("a", "b"):
        runs.open_workdir(tmp_path / arm, plain["runs"][arm])
        (tmp_path / arm / "results.jsonl").write_text(json.dumps(ROW) + "\n")
    spoil(tmp_path / "b" / name)
    before = contents(tmp_path)
    assert words in refused(run_many, config, tmp_path)
    assert contents(tmp_path) == before


def test_a_damaged_arm_leaves_the_directory_of_a_comparison_unwritten(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").touch()
    refused(run_many, comparison(a=tiny(), b=tiny("lstm")), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


ROWS = [(kind, field) for kind, fields in SCHEMA.items() for field in ("seed", *fields)]


@pytest.mark.parametrize("kind, field", ROWS)
def test_rows_have_every_field_that_is_read(kind, field, tmp_path):
    """In the middle of a file; missing, or of another type."""
    path = tmp_path / "results.jsonl"
    sound = {"kind": kind, "seed": 0, **{name: FINAL.get(name) for name in SCHEMA[kind]}}
    path.write_text(f"{json.dumps(sound)}\n" * 3)
    assert read_rows(path) == [sound] * 3
    for given, said in ({}, "missing"), ({field: {"x": 1}}, "{'x': 1}"):
        spoilt = {k: v for k, v in sound.items() if k != field} | given
        path.write_text(f"{json.dumps(sound)}\n{json.dumps(spoilt)}\n{json.dumps(sound)}\n")
        expected = f"{path}:2: {field} of this {kind} row is {said}"
        assert refused(read_rows, path) == expected


CONFIGS = [
    (without("label"), "config.label is missing"),
    (without("task"), "config.task.name is missing"),
    (without("model", "cell"), "config.model.cell is missing"),
    (without("optimizer"), "config.optimizer is missing"),
    (without("train", "seeds"), "config.train.seeds is missing"),
    (without("eval"), "config.eval.lengths is missing"),
    (without("task", "length"), "config.task.length is missing"),
    (lambda config: {**config, "train": 5}, "config.train.seed is missing"),
    (lambda config: {**config, "label": 5}, "config.label is 5"),
]


@pytest.mark.parametrize("spoil, words", CONFIGS)
def test_a_config_without_a_field_is_named_in_the_report(spoil, words, tmp_path):
    write_run(tmp_path, as_dict(base.get_config("rnn")), {0: 0.1, 1: 0.2, 2: 0.3})
    change(tmp_path / "config.json", spoil)
    message = refused(write_report, tmp_path)
    assert message.startswith(f"{tmp_path}/config.json: ") and words in message


def test_the_run_of_a_comparison_is_named_in_the_report(tmp_path):
    write_all(tmp_path, compare.get_config("adding"), ADDING)
    change(tmp_path / "config.json", without("runs", "adding_gru", "train", "seed"))
    assert "config.runs.adding_gru.train.seed is missing" in refused(write_report, tmp_path)
    for runs_ in ([], {}):
        change(tmp_path / "config.json", lambda config, runs_=runs_: {"runs": runs_})
        assert "a comparison has runs by name" in refused(write_report, tmp_path)


def test_a_metric_of_another_version_is_named_in_the_report(tmp_path):
    write_run(tmp_path, as_dict(base.get_config("rnn")), {0: 0.1}, metric="furlongs")
    assert "results.jsonl: metric 'furlongs'" in refused(write_report, tmp_path)
