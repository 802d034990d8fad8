"""The commands as a user types them: exit status, one clear line, nothing half-written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import cli

ROOT = Path(__file__).parent.parent


def command(module, *flags, cwd=ROOT, env=None):
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{module}", *flags],
        cwd=cwd,
        env=os.environ | {"COLUMNS": "200"} | (env or {}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def refused(done, *words):
    """Exit status 2 and exactly one line on stderr, with these words in it."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: "), done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config=configs/nothing.py"], ["configs/nothing.py", "configs/adding.py"]),
        (["--config=configs/ading.py"], ["'configs/ading.py'", "did you mean 'configs/adding.py'"]),
        (["--config=/nowhere/nothing.py"], ["/nowhere/nothing.py", "No such file"]),
        (["--config=configs/adding.py:gur"], ["'gur'", "did you mean 'gru'", "rnn, lstm, gru"]),
        (["--config=configs/compare.py:ading"], ["'ading'", "did you mean 'adding'", "digits"]),
        (["--config=configs/ablation_bias.py:x"], ["takes no argument"]),
        (["--config.model.cell=gur"], ["config.model.cell='gur'", "lstm"]),
        (["--config.model.cel=gru"], ["'cel'", '"cell"']),
        (["--config.modl.cell=gru"], ["'modl'", '"model"']),
        (["--config.model.features=2.5"], ["config.model.features=2.5"]),
        (["--config.model.bidirectional=maybe"], ["config.model.bidirectional=maybe"]),
        (["--config.optimizer.clip=big"], ["config.optimizer.clip=big"]),
        (["--workdr=x"], ["workdr", "workdir"]),
        (["train"], ["'train'", "--workdir=PATH"]),
        (["--flagfile=nothing.txt"], ["nothing.txt"]),
        (["--config.model.nothing=None"], ["no such config field: config.model.nothing"]),
        (["--config.train.steps=None"], ["config.train.steps=None"]),
        (["--config.eval.lengths=None"], ["config.eval.lengths=None", "()"]),
        (["--config.label=gru"], ["config.label='gru'", "config.model.cell='lstm'"]),
        (["--config.model.features=100000000"], ["GiB of memory", "config.model.features"]),
        (["--config=configs/compare.py"], ["comparison", "experiments.compare"]),
    ],
)
def test_K06_mistakes_on_the_command_line_are_one_line(flags, words, tmp_path):
    refused(command("train", f"--workdir={tmp_path / 'run'}", *flags), *words)
    assert not (tmp_path / "run").exists()


def test_a_value_that_cannot_be_is_one_line_and_writes_nothing(tmp_path):
    done = command("train", f"--workdir={tmp_path / 'run'}", "--config.task.name=addin")
    refused(done, "config.task.name='addin'", "did you mean 'adding'")
    assert not (tmp_path / "run").exists()


def test_a_used_directory_is_refused_and_untouched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refused(command("train", f"--workdir={tmp_path}"), f"--workdir={tmp_path}", "not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


PRINTS = (
    "from experiments import cli, progress; cli.guarded(lambda: progress.console.print('text'))"
)


@pytest.mark.parametrize("words", [["-m", "experiments.train", "--help"], ["-c", PRINTS]])
def test_output_that_nobody_reads_ends_a_command_without_a_word(words):
    """As in `train | head`: with the status of a process that SIGPIPE ends."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=writer, stderr=-1, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("module", ["train", "compare", "report", "evaluate", "generate"])
def test_a_signal_while_a_command_is_imported_is_one_line(module, tmp_path):
    """The first package that it imports sends the signal itself."""
    (tmp_path / "absl.py").write_text("import os; os.kill(os.getpid(), 2)")
    done = command(module, env={"PYTHONPATH": str(tmp_path)})
    line = "interrupted by SIGINT; the same command goes on from here\n"
    assert (done.returncode, done.stderr) == (130, line)


def test_a_notebook_keeps_its_own_way_with_signals():
    code = (
        "import signal; before = signal.getsignal(signal.SIGINT)\n"
        "import experiments.cli, experiments.train\n"
        "assert signal.getsignal(signal.SIGINT) == before"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("module", ["train", "compare", "report"])
def test_help_tells_the_flags_without_starting_jax(module):
    done = command(module, "--help")
    assert done.returncode == 0 and "--workdir" in done.stdout
    code = f"import sys, experiments.{module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [("False", False), ("false", False), ("0", False), ("True", True), ("true", True), ("1", True)],
)
def test_K05_spellings_of_a_boolean(spelling, expected):
    assert parsed("model.bidirectional", spelling) is expected


def test_K05_an_int_is_a_float_but_not_the_other_way_round():
    value = parsed("optimizer.learning_rate", "1")
    assert value == 1.0 and isinstance(value, float)


def test_K01_value_whose_default_is_none_can_be_set():
    assert parsed("optimizer.b1", "0.8") == 0.8
    assert parsed("task.min_length", "50") == 50


@pytest.mark.parametrize(
    "given, expected",
    [
        (["--config.eval.lengths=(8,)", "--config.label=a", "--config.eval.lengths=(16,)"], (16,)),
        (["--config.eval.lengths", "8", "-config.eval.lengths", "9"], (9,)),
        (["--config.eval.lengths=8", "--config.eval.lengths=()"], ()),
        (["--config.eval.lengths=8,9"], (8, 9)),
    ],
)
def test_K03_of_a_field_given_twice_the_last_one_counts(given, expected):
    assert eval(show(*given, field="eval.lengths")) == expected


def test_K01_none_is_replaced_by_a_later_value_and_replaces_an_earlier_one():
    given = ["--config.optimizer.clip=None", "--config.optimizer.clip=2.5"]
    assert show(*given, field="optimizer.clip") == "2.5\n"
    assert show(*given[::-1], field="optimizer.clip") == "None\n"


def test_K03_overrides_from_a_flag_file(tmp_path):
    path = tmp_path / "flags.txt"
    path.write_text("--config=configs/adding.py:gru\n--config.model.features=7\n")
    shown = show(f"--flagfile={path}")
    assert "features: 7" in shown and "cell: gru" in shown


def parsed(field, text):
    """The value of one field after parsing, as Python."""
    shown = show(f"--config.{field}={text}", field=field)
    return eval(shown, {"__builtins__": {}}, {"True": True, "False": False, "None": None})


def show(*flags, field=None):
    """What the flags make of the config, without running it."""
    shown = "config" if field is None else f"repr(config.{field})"
    code = (
        "import sys; from experiments import cli\n"
        f"def main(workdir, config): print({shown})\n"
        "cli.start(main, workdir=None, config='configs/adding.py')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *flags], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compiled_programs_are_kept_where_caches_are(tmp_path, monkeypatch):
    """Unless another place is set; and where no directory can be had, nowhere."""
    name = "JAX_COMPILATION_CACHE_DIR"
    monkeypatch.setenv(name, "elsewhere")
    cli.keep_programs()
    assert os.environ[name] == "elsewhere"

    monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cli.keep_programs()
    assert os.environ[name] == str(tmp_path / "cache/seqmodels/programs")
    assert (tmp_path / "cache/seqmodels/programs").is_dir()

    monkeypatch.delenv(name)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cli.keep_programs()
    assert name not in os.environ
