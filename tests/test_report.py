"""The report from rows written by hand: what it counts, averages, says, and never says."""

import csv
import json
import re
import subprocess
import sys

import pytest

from configs import base, compare
from experiments.errors import UserError
from experiments.figures import styles
from experiments.findings import findings
from experiments.report import write_report
from experiments.results import Results, as_dict, open_workdir
from experiments.summary import COLUMNS, METRICS, by_task, read_arms
from seqmodels import metrics

CHANCE = {"adding": 1 / 6, "order": 0.25, "digits": 0.1, "parity": 0.5}
METRIC = {"adding": "mse", "order": "accuracy", "digits": "accuracy", "parity": "accuracy"}


def write_run(workdir, config, scores, program=0, final=True, **common):
    """Rows of seeds {seed: score, or None for a diverged one, or (score, steps to solve)}."""
    open_workdir(workdir, config)
    task, train = config["task"]["name"], config["train"]
    chance = CHANCE[task]
    results = Results(workdir, config, task)
    with results:
        for seed, given in scores.items():
            score, solved = given if isinstance(given, tuple) else (given, None)
            stopped = solved is not None and train["stop_when_solved"]
            last = solved if stopped else train["steps"]
            shown = float("nan") if score is None else score
            for step in range(train["eval_every"], last + 1, train["eval_every"]):
                given = {"loss": shown, "score": shown, "weight": 250.0, "chance": chance}
                results.write("valid", seed, step=step, **given)
            if not final:
                continue
            for length in (config["eval"]["lengths"] or [None]) if score is not None else []:
                results.write(
                    "test", seed, step=last, length=length, loss=score, score=score, chance=chance
                )
            fields = {
                "status": "diverged" if score is None else "solved" if stopped else "finished",
                "step": last,
                "score": score,
                "metric": METRIC[task],
                "chance": chance,
                "params": 17158,
                "solved": None if train["solved"] is None else solved is not None,
                "steps_to_solve": solved,
                "seconds": 10.0 + program,
                "compile_seconds": 5.0,
                "device": "2 x cpu",
            }
            results.write("final", seed, **(fields | common))


def write_all(workdir, config, scores):
    """A comparison with {run name: scores}; runs without scores have not begun."""
    plain = as_dict(config)
    open_workdir(workdir, plain)
    for name, given in scores.items():
        write_run(workdir / name, plain["runs"][name], given)
    return plain


def summary(workdir):
    write_report(workdir)
    with (workdir / "summary.csv").open() as file:
        return {(row["task"], row["cell"]): row for row in csv.DictReader(file)}


def sentences(workdir):
    return {task: " ".join(findings(arms)) for task, arms in by_task(read_arms(workdir)).items()}


ADDING = {  # one that stays at chance, two that solve it
    "adding_rnn": {0: 0.17, 1: 0.18, 2: 0.19},
    "adding_lstm": {0: (0.008, 350), 1: (0.009, 350), 2: (0.007, 450)},
    "adding_gru": {0: (0.005, 100), 1: (0.005, 100), 2: (0.005, 150)},
}


def test_summary_of_a_comparison(tmp_path, capsys):
    write_all(tmp_path, compare.get_config("adding"), ADDING)
    rows = summary(tmp_path)
    assert [cell for _, cell in rows] == ["rnn", "lstm", "gru"]
    assert tuple(rows["adding", "rnn"]) == COLUMNS
    assert rows["adding", "lstm"] == {
        "task": "adding",
        "cell": "lstm",
        "seeds": "3",
        "params": "17158",
        "metric": "mse",
        "mean": "0.008",
        "std": "0.001",
        "chance": "0.166667",
        "solved": "3",
        "steps_to_solve": "350",
        "seconds": "10",
        "status": "ok",
    }
    assert rows["adding", "rnn"]["solved"] == "0"
    assert rows["adding", "rnn"]["steps_to_solve"] == ""

    # Chance, spread, sizes and seeds beside each score on the terminal.
    printed = capsys.readouterr().out
    for line in re.findall(r"^ *(?:rnn|lstm|gru) .*$", printed, re.MULTILINE):
        assert re.search(r"0\.\d{4} ± 0\.\d{4} +0\.1667 +3/3 .* 17158 +ok", line), line
    assert "lower is better" in printed


def test_the_header_is_the_documented_one(tmp_path):
    write_all(tmp_path, compare.get_config("adding"), {})
    write_report(tmp_path)
    assert (tmp_path / "summary.csv").read_text().splitlines()[0] == (
        "task,cell,seeds,params,metric,mean,std,chance,solved,steps_to_solve,seconds,status"
    )


def test_diverged_seeds_are_not_averaged_nor_their_cell_named_best(tmp_path):
    scores = ADDING | {"adding_rnn": {0: (0.0001, 50), 1: None, 2: (0.0001, 50)}}
    write_all(tmp_path, compare.get_config("adding"), scores)
    row = summary(tmp_path)["adding", "rnn"]
    assert (row["status"], row["seeds"], row["mean"]) == ("diverged", "3", "0.0001")
    said = sentences(tmp_path)["adding"]
    assert "Diverged: rnn, on 1 of 3 seeds" in said
    assert "Fewest updates on average: gru" in said
    for claim in ("Best score", "Fewest updates", "Gates", "Reversal"):
        assert not re.search(rf"{claim}[^.]*\brnn\b", said)


def test_a_score_that_is_not_finite_is_a_diverged_seed(tmp_path):
    config = as_dict(base.get_config("rnn"))
    write_run(tmp_path, config, {0: 0.17, 1: 0.18})
    write_run(tmp_path, config, {2: float("nan")}, status="finished")
    row = summary(tmp_path)["adding", "rnn"]
    assert (row["status"], row["mean"]) == ("diverged", "0.175")


def test_every_seed_diverged(tmp_path):
    write_all(tmp_path, compare.get_config("adding"), {"adding_rnn": dict.fromkeys(range(3))})
    row = summary(tmp_path)["adding", "rnn"]
    assert (row["status"], row["seeds"], row["mean"], row["std"]) == ("diverged", "3", "", "")


def test_failed_unfinished_and_missing_runs(tmp_path):
    config = as_dict(compare.get_config("adding"))
    write_all(tmp_path, compare.get_config("adding"), {"adding_lstm": {0: 0.1}})
    write_run(tmp_path / "adding_gru", config["runs"]["adding_gru"], {0: 0.1}, final=False)
    error = tmp_path / "adding_gru" / "error.txt"
    error.write_text("Traceback:\n  x\nRuntimeError: out of <memory>\nwith details\n")
    rows = summary(tmp_path)
    assert {row["status"] for row in rows.values()} == {"failed"}
    assert rows["adding", "rnn"]["seeds"] == "0"
    assert rows["adding", "rnn"]["mean"] == rows["adding", "rnn"]["metric"] == ""
    assert (rows["adding", "lstm"]["mean"], rows["adding", "lstm"]["std"]) == ("0.1", "")
    said = sentences(tmp_path)["adding"]
    assert "Not finished: rnn; 0 of 3 seeds ended" in said
    assert "Not finished: lstm; 1 of 3 seeds ended" in said
    assert "Failed: gru (RuntimeError: out of <memory>)" in said
    assert "out of &lt;memory&gt;" in (tmp_path / "report.html").read_text()


def test_a_last_line_cut_short_by_a_kill_is_passed_over(tmp_path):
    write_all(tmp_path, compare.get_config("adding"), ADDING)
    with (tmp_path / "adding_gru" / "results.jsonl").open("a") as file:
        file.write('{"kind": "final", "se')
    assert summary(tmp_path)["adding", "gru"]["status"] == "ok"


def test_seconds_add_up_over_programs_and_only_wanted_seeds_count(tmp_path):
    config = as_dict(base.get_config("rnn"))
    write_run(tmp_path, config, {0: 0.1, 1: 0.2})
    write_run(tmp_path, config, {2: 0.6}, program=7)
    assert summary(tmp_path)["adding", "rnn"]["seconds"] == "27"
    config["train"]["seeds"] = 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    row = summary(tmp_path)["adding", "rnn"]
    assert (row["seeds"], row["mean"], row["seconds"]) == ("2", "0.15", "10")
    assert row["solved"] == ""  # no threshold is set
    assert [*read_arms(tmp_path)[0].curves()] == [0, 1]


def test_one_seed_has_no_spread_and_is_compared_with_nothing(tmp_path):
    config = compare.get_config("digits")
    config.seeds = 1
    write_all(tmp_path, config, {f"digits_{cell}": {0: 0.9} for cell in base.CELLS})
    assert summary(tmp_path)["digits", "gru"]["std"] == ""
    assert "One seed per cell" in (tmp_path / "report.html").read_text()
    assert "Best" not in sentences(tmp_path)["digits"]


def test_findings_where_gates_help(tmp_path):
    write_all(tmp_path, compare.get_config("adding"), ADDING)
    said = sentences(tmp_path)["adding"]
    assert "No better than chance (0.1667): rnn on 3 of 3 seeds, 0.1800 ± 0.0100." in said
    assert "lstm, after 350 updates (median; 350 to 450)" in said
    assert "Solved on none: rnn" in said
    assert "Fewest updates on average: gru, 117; clearly ahead of the rest" in said
    assert "Gates help here: lstm and gru do clearly better than rnn" in said
    assert "Chrono start of the gates: lstm and gru. It uses T = 200" in said
    assert "optimizer.learning_rate is 0.001 for rnn, 0.01 for the others" in said


def test_findings_where_they_bring_nothing(tmp_path):
    scores = {
        "digits_rnn": {0: 0.98, 1: 0.985, 2: 0.99},
        "digits_lstm": {0: 0.95, 1: 0.96, 2: 0.97},
        "digits_gru": {0: 0.955, 1: 0.96, 2: 0.97},
    }
    write_all(tmp_path, compare.get_config("digits"), scores)
    said = sentences(tmp_path)["digits"]
    assert "Best score: rnn, 0.9850 ± 0.0050; clearly ahead of the rest" in said
    assert "Level with each other: gru, 0.9617 ± 0.0076; lstm, 0.9600 ± 0.0100" in said
    assert "Reversal: rnn, without gates, does clearly better than lstm and gru" in said
    assert "Gates bring nothing here: no gated cell does clearly better than rnn" in said


def test_a_seed_that_failed_is_not_called_level(tmp_path):
    scores = {
        "parity_rnn": {0: (1.0, 900), 1: 0.5, 2: (1.0, 1200)},
        "parity_lstm": dict.fromkeys(range(3), (1.0, 500)),
        "parity_gru": dict.fromkeys(range(3), (1.0, 600)),
    }
    write_all(tmp_path, compare.get_config("parity"), scores)
    said = sentences(tmp_path)["parity"]
    assert "level with each other: lstm, 1.0000 ± 0.0000; gru, 1.0000 ± 0.0000; not " in said
    assert "Whether gates help is open" in said
    assert "At length 500, beyond the training length of 20: rnn, 0.8333" in said


def test_the_page_needs_nothing_else(tmp_path):
    config = compare.get_config("adding,digits,parity")
    scores = ADDING | {
        f"{task}_{cell}": {0: 0.9, 1: (0.95, 600), 2: (0.97, 1200)}
        for task in ("digits", "parity")
        for cell in base.CELLS
    }
    write_all(tmp_path, config, scores)
    write_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4  # three learning curves, one of score by length
    assert "//" not in re.sub(r"<!--.*?-->", "", page)  # no address at all
    assert not re.search(r"<(link|script|img|iframe|object)|@import|src=", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len({*ids})
    assert {*re.findall(r'(?:href="#|url\(#)([^")]+)', page)} <= {*ids}
    assert page.count("<details>") == 9
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [
        "config.json",
        "report.html",
        "summary.csv",
    ]


def test_text_of_configs_is_escaped(tmp_path, capsys):
    label = "<script>x</script> & [bold]$\\frac$"
    config = compare.get_config("adding")
    config.runs.adding_rnn.label = label
    write_all(tmp_path, config, ADDING)
    assert ("adding", label) in summary(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;x&lt;/script&gt; &amp; [bold]" in page
    assert label in capsys.readouterr().out


def test_equal_labels_and_tasks_are_kept_apart(tmp_path):
    config = compare.get_config("adding")
    config.runs.adding_gru.label = "lstm"
    config.runs.adding_rnn.task.length = 400
    write_all(tmp_path, config, ADDING)
    assert {*summary(tmp_path)} == {
        ("adding length=400", "rnn"),
        ("adding length=200", "lstm (adding_lstm)"),
        ("adding length=200", "lstm (adding_gru)"),
    }


def test_styles_are_distinct_and_the_same_in_every_report():
    eight = styles([*(f"gru {i}" for i in range(5)), "lstm", "gru", "rnn"])
    assert len({style.color for style in eight.values()}) == 8
    for label in ("rnn", "lstm", "gru"):
        assert eight[label] == styles([label])[label]
    many = styles(map(str, range(16)))
    assert len({*many.values()}) == 16


def test_metrics_are_those_of_the_library():
    assert {name: m.higher_is_better for name, m in METRICS.items()} == {
        name: m.higher_is_better for name, m in metrics.METRICS.items()
    }


def test_directories_without_results_are_refused(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        write_report(tmp_path / "absent")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        write_report(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match="is no config of a run"):
        write_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_corrupt_rows_are_refused(tmp_path):
    write_run(tmp_path, as_dict(base.get_config("rnn")), {0: 0.1, 1: 0.2, 2: 0.3})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(UserError, match=r"results.jsonl:\d+ is not a row"):
        write_report(tmp_path)


def test_the_command_starts_without_jax_and_refuses_in_one_line(tmp_path):
    code = (
        "import sys, experiments.report as r; "
        "assert not {'jax', 'matplotlib'} & {*sys.modules}; "
        "from experiments.cli import start; start(r.main, workdir='x')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"--workdir={tmp_path}"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
