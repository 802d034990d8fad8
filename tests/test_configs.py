"""Every shipped config, with each of its arguments, is ready to run or says which file it lacks."""

import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from placed import CASES, Placed
from test_public import SILENT, data_dir  # noqa: F401 (a fixture)

from configs import base, compare
from experiments.build import build
from experiments.errors import UserError
from experiments.runs import check_sizes
from seqmodels.data import music
from seqmodels.data.manual import MANUAL_DIR_VARIABLE
from seqmodels.data.prepare import DATA_DIR_VARIABLE
from seqmodels.data.public import SOURCES

pytestmark = pytest.mark.usefixtures("standard_promotion")
ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("[a-z]*.py") if path.stem != "base")
BY_HAND = {  # and a name in the error
    "japanese_vowels": "JapaneseVowels_TRAIN.ts",
    "jsb": "JSB_Chorales.mat",
    "mnist_10k": "digits/0.json",
    "movie_reviews": "movieReviewSnippets_GroundTruth.txt",
    "muse": "MuseData.mat",
    "nottingham": "Nottingham.mat",
    "piano": "Piano_midi.mat",
    "temperatures": "seattle-temps.csv",
}
ARGUMENTS = {"linear": base.LINEAR, "compare": [*compare.TASKS], "public": [*SOURCES]}
CONFIGS = [
    (name, argument)
    for name in NAMES
    for argument in ARGUMENTS.get(name, [] if name == "ablation_bias" else base.CELLS)
] + [("ablation_bias", None)]


def runs(name, argument):
    """The configs of all runs that a command would start."""
    get_config = importlib.import_module(f"configs.{name}").get_config
    config = get_config() if argument is None else get_config(argument)
    assert isinstance(config, ConfigDict) and config.is_locked
    return [*config.runs.values()] if "runs" in config else [config]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Where what comes with Python is prepared, once; the rest has to be placed."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def empty_handed(prepared, tmp_path, monkeypatch):
    """No file placed by hand, no network, no package that has or makes the data."""
    find, hidden = importlib.util.find_spec, ("tensorflow", "vega_datasets")
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in hidden else find(name, *rest),
    )
    monkeypatch.delenv(MANUAL_DIR_VARIABLE, raising=False)
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(prepared))
    monkeypatch.setattr(music, "URL", (tmp_path / "absent").as_uri())
    monkeypatch.chdir(ROOT)  # where commands are run: configs/text_files.py reads its README.md


def lacking(name, argument):
    """What a config that cannot run at once names in its error, or None."""
    if name == "compare":
        return BY_HAND.get(argument)
    return "seqmodels[prepare]" if name == "public" else BY_HAND.get(name)


@pytest.mark.parametrize(
    "name, argument",
    [
        pytest.param(
            *case,
            id=":".join(map(str, case)),
            marks=[pytest.mark.slow] * ("python_tokens" in case),  # prepares the standard library
        )
        for case in CONFIGS
    ],
)
def test_shipped_config_builds_or_names_what_to_get(name, argument, empty_handed):
    wanted = lacking(name, argument)
    if wanted is None:
        built = {str(n): build(config) for n, config in enumerate(runs(name, argument))}
        if name == "compare":
            check_sizes(built, compare.get_config(argument).match_params)
        return
    for config in runs(name, argument):
        with pytest.raises(UserError) as caught:
            build(config)
        message = str(caught.value)
        assert wanted in message and "\n" not in message, message


def test_the_list_knows_the_argument_of_every_config():
    others = {"ablation_bias": None, "compare": "tasks", "public": "name"}
    for name in NAMES:
        signature = inspect.signature(importlib.import_module(f"configs.{name}").get_config)
        assert next(iter(signature.parameters), None) == others.get(name, "cell")
    assert {*BY_HAND} <= {*NAMES}


@pytest.mark.parametrize("case", CASES)
def test_comparison_on_placed_files_builds_where_they_are(case, tmp_path, monkeypatch):
    """With cells of comparable size."""
    placed = Placed(case, tmp_path, monkeypatch)
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(placed.data_dir))
    config = compare.get_config("jsb" if case == "music" else case)
    built = {name: build(run) for name, run in config.runs.items()}
    assert len(built) == len(base.CELLS)
    check_sizes(built, config.match_params)


@pytest.mark.parametrize("name", SILENT)
def test_config_of_a_public_set_builds_where_it_was_prepared(name, data_dir, monkeypatch):  # noqa: F811
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(data_dir))
    (config,) = runs("public", name)
    assert build(config).params > 0
