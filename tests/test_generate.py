"""The command `generate`: text from a run directory alone, drawn as asked, or one line that says
why not."""

import json
import os
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from test_cli import ROOT, command, refused
from test_experiments import comparison, tiny
from test_resume import damage
from test_streams import TEXT, letters

from experiments import generate
from experiments.errors import UserError
from experiments.results import as_dict
from experiments.runs import run_one
from experiments.trained import read_config, read_params

pytestmark = pytest.mark.usefixtures("standard_promotion")
PROMPT = "def f1(x"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two seeds, which know some of their text; the text is not there any more."""
    place = tmp_path_factory.mktemp("trained")
    file = place / "text.txt"
    file.write_text(TEXT)
    config = letters(file, steps=200, eval_every=200, steps_per_call=2)
    with jax.numpy_dtype_promotion("standard"):
        run_one(config, place / "run")
    file.unlink()
    return place / "run"


@pytest.fixture
def said(trained, capsys):
    """What the command writes to stdout for some flags, the others left as they are."""

    def run(workdir=trained, **flags):
        capsys.readouterr()
        every = {name: option.default for name, option in generate.OPTIONS.items()}
        assert generate.main(workdir, **every | {"length": 40, "prompt": PROMPT} | flags) == 0
        return capsys.readouterr().out

    return run


def test_text_goes_on_from_the_prompt_up_to_the_length(said):
    text = said(prompt=PROMPT, temperature=0.0)
    assert text.startswith(PROMPT) and text.endswith("\n") and len(text) == len(PROMPT) + 40 + 1
    assert said(prompt="é€😀", length=0) == "é€😀\n"
    assert said(length=3, temperature=0.0) == text[: len(PROMPT) + 3] + "\n"


def test_files_have_no_border_to_begin_with(trained, said):
    """It would be read, and be drawn, with a vector that no byte of training has touched."""
    with pytest.raises(UserError, match="^--prompt='' is empty: .* without borders.*$"):
        said(prompt="")
    assert json.loads((trained / "tokenizer.json").read_text()) == {
        "kind": "byte",
        "borders": False,
    }


def test_a_text_that_was_cut_says_so_beside_the_text(trained, said, capsys):
    every = {name: option.default for name, option in generate.OPTIONS.items()}
    generate.main(trained, **every | {"length": 5, "prompt": PROMPT})
    assert capsys.readouterr().err == "(cut after --length=5 symbols)\n"


def test_M06_greedy_text_is_the_same_whatever_the_seed(said):
    greedy = said(temperature=0.0)
    assert greedy == said(temperature=0.0, seed=7) == said(top_k=1, seed=3)
    assert greedy == said(top_p=1e-6, seed=4) == said(temperature=1e-4, seed=5)
    assert len(set(greedy.removeprefix(PROMPT))) > 3, "a model that learnt nothing says one letter"


def test_text_is_drawn_by_the_seed(said):
    def texts(**flags):
        return [said(seed=seed, **{"temperature": 1.0} | flags) for seed in range(4)]

    usual = texts()
    assert len({*usual}) == 4 and usual == texts()
    assert usual != texts(temperature=1.5) and usual != texts(top_p=0.5)
    assert usual != texts(top_k=2)


def test_each_seed_of_the_run_has_a_text_of_its_own(said):
    first, second = (said(temperature=1.0, run_seed=seed) for seed in (0, 1))
    assert said(temperature=1.0) == first != second


def test_text_is_that_of_the_parameters_that_were_tested(trained):
    """A run with an average tests the average."""
    config = read_config(trained)
    average, seed, step, diverged = read_params(trained, config, None)
    with config.unlocked():
        config.train.average = 0.0
    last, *_ = read_params(trained, config, None)
    assert (seed, step) == (0, 200)
    assert jax.tree.structure(average) == jax.tree.structure(last)
    for one, other in zip(jax.tree.leaves(average), jax.tree.leaves(last), strict=True):
        assert one.shape == other.shape and one.dtype == np.float32
    assert any(
        (one != other).any()
        for one, other in zip(jax.tree.leaves(average), jax.tree.leaves(last), strict=True)
    )


@pytest.mark.parametrize(
    "flags, words",
    [
        ({"temperature": -1.0}, "--temperature=-1.0 must be a finite number, 0 (greedy) or more"),
        ({"temperature": float("nan")}, "--temperature=nan must be"),
        ({"top_k": 0}, "--top_k=0 must be a whole number, 1 or more"),
        ({"top_p": 2.0}, "--top_p=2.0 must be above 0 and at most 1"),
        ({"top_p": 0.0}, "--top_p=0.0 must be above 0"),
        ({"length": -1}, "--length=-1 must be at least 0"),
        ({"seed": -1}, "--seed=-1 must be at least 0 and below 2**32"),
        ({"seed": 2**32}, "--seed=4294967296 must be"),
        ({"run_seed": 9}, "--run_seed=9 has no checkpoint"),
        ({"prompt": "a\udcff"}, "--prompt: 'utf-8' codec can't encode"),
    ],
)
def test_flags_out_of_range_are_one_line_before_any_text(flags, words, said, capsys):
    with pytest.raises(UserError) as caught:
        said(**{"prompt": PROMPT} | flags)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def without(field):
    def change(run):
        path = run / "config.json"
        config = json.loads(path.read_text())
        group, _, leaf = field.rpartition(".")
        del config[group][leaf]
        path.write_text(json.dumps(config))

    return change


def test_a_seed_that_diverged_writes_nothing(trained, said, monkeypatch):
    found = read_params(trained, read_config(trained), 1)._replace(diverged=True)
    monkeypatch.setattr("experiments.trained.read_params", lambda *args: found)
    with pytest.raises(UserError, match="seed 1 of --workdir=.* diverged by step 200"):
        said(run_seed=1)


def with_value(group, leaf, value):
    def change(run):
        path = run / "config.json"
        config = json.loads(path.read_text())
        config[group][leaf] = value
        path.write_text(json.dumps(config))

    return change


def of_a_comparison(run):
    plain = as_dict(comparison(one=tiny(), other=tiny("gru")))
    (run / "config.json").write_text(json.dumps(plain))


@pytest.mark.parametrize(
    "spoil, words",
    {
        "nothing there": (shutil.rmtree, ["--workdir=", "holds no run"]),
        "no run": (lambda run: (run / "config.json").unlink(), ["holds no run"]),
        "no JSON": (lambda run: (run / "config.json").write_text("{"), ["is not JSON"]),
        "no config": (lambda run: (run / "config.json").write_text("[1]"), ["is no config"]),
        "comparison": (of_a_comparison, ["is a comparison", "one, other"]),
        "no tokenizer": (
            lambda run: (run / "tokenizer.json").unlink(),
            ["no run of a language model", "tokenizer.json"],
        ),
        "other tokenizer": (
            lambda run: (run / "tokenizer.json").write_text('{"kind": "runes"}'),
            ["tokenizer.json: tokenizer kind is 'runes'"],
        ),
        "classifier": (with_value("model", "readout", "last"), ["no run of a language model"]),
        "fewer fields": (without("model.tied"), ["config.json: config.model.tied is missing"]),
        "edited": (
            with_value("model", "features", 17),
            ["not that of its checkpoint (config.model.features is 16 there and 17 here)"],
        ),
        "no checkpoint": (
            lambda run: shutil.rmtree(run / "checkpoints"),
            ["has no checkpoint; train it first"],
        ),
        "damaged": (
            lambda run: damage(run / "checkpoints/seeds_0_1/200/state"),
            ["checkpoint", "is damaged"],
        ),
    }.values(),
)
def test_a_directory_that_cannot_serve_is_one_line(spoil, words, trained, said, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    spoil(tmp_path / "run")
    with pytest.raises(UserError) as caught:
        said(tmp_path / "run")
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


# As a process.


def test_K06_unknown_flag_is_one_line(tmp_path):
    refused(command("generate", f"--workdir={tmp_path}", "--tempreature=1"), "tempreature")
    refused(command("generate", f"--workdir={tmp_path}", "--top_k=many"), "--top_k=many")
    refused(command("generate", f"--workdir={tmp_path}", "text"), "'text'", "--workdir=PATH")


def bare(trained, place):
    """The run and the library; no configs, no tests, no data."""
    for name in ("experiments", "seqmodels"):
        (place / name).symlink_to(ROOT / name)
    shutil.copytree(trained, place / "run")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SEQMODELS")}
    return environment | {"HOME": str(place), "XDG_CACHE_HOME": str(place / "cache")}


def process(place, environment, *flags, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.generate", "--workdir=run", *flags],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def test_the_run_directory_is_all_it_needs(trained, said, tmp_path):
    environment = bare(trained, tmp_path)
    flags = ("--temperature=0.9", "--seed=3", "--length=40", f"--prompt={PROMPT}")
    with process(tmp_path, environment, *flags) as running:
        out, err = running.communicate(timeout=300)
    assert (running.returncode, err) == (0, "(cut after --length=40 symbols)\n")
    assert out == said(temperature=0.9, seed=3, prompt=PROMPT)
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--temperature=-1", "--top_k=0", "--top_p=2", "--run_seed=5"])
def test_a_bad_flag_is_one_line_and_status_2(flag, trained):
    done = command("generate", f"--workdir={trained}", f"--prompt={PROMPT}", flag)
    refused(done, flag.split("=")[0])
    assert done.stdout == ""


def test_a_directory_that_is_no_run_is_one_line_and_status_2(tmp_path):
    refused(command("generate", f"--workdir={tmp_path}"), str(tmp_path), "holds no run")


@pytest.mark.slow
def test_text_is_seen_while_it_is_written(trained, tmp_path):
    """More than anybody waits for; the first letters are there at once."""
    with process(
        tmp_path, bare(trained, tmp_path), "--length=99999999", "--temperature=0", "--prompt=d"
    ) as running:
        assert len(running.stdout.read(60)) == 60
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130 and err.count("\n") == 1


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(trained, tmp_path):
    flags = "--length=2000", "--temperature=0", "--prompt=d"
    with process(tmp_path, bare(trained, tmp_path), *flags) as running:
        running.stdout.read(1)
        running.stdout.close()
        assert running.wait(timeout=120) == 0
        assert running.stderr.read() == ""
