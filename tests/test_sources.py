"""What every source knows beside its rows, whatever kind it is."""

import jax
import numpy as np
import pytest
from test_experiments import tiny
from test_streams import TEXT, letters

from configs.base import set_task
from experiments.build_source import build_source
from experiments.sources import Drawn, Resident
from experiments.streams import Continued, Streamed
from seqmodels.data import DATASETS
from seqmodels.data.prepare import SPLITS


def resident(folder):
    config = tiny("gru")
    set_task(config, "digits")
    config.model.readout = "last"
    return build_source(config)


def continued(folder):
    config = tiny("gru", chunk=64)
    set_task(config, "pydoc_topics")
    return build_source(config)


def streamed(folder):
    (folder / "text.txt").write_text(TEXT)
    return build_source(letters(folder / "text.txt"))


def drawn(folder):
    return build_source(tiny("gru"))


KINDS = {Drawn: drawn, Resident: resident, Continued: continued, Streamed: streamed}


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def source(request, tmp_path):
    found = KINDS[request.param](tmp_path)
    assert type(found) is request.param
    return found


def test_chance_is_known_of_each_split(source):
    """Of a data set, that of the split which is scored: the parts of one differ from another's."""
    chances = [source.chance(split=split) for split in SPLITS]
    assert np.isfinite(chances).all()
    assert source.chance() == source.chance(None) == source.chance(source.lengths[0], "test")
    assert chances[-1] == source.chance()
    assert len(set(chances)) == (1 if isinstance(source, Drawn) else 3)


@pytest.mark.parametrize("name, make", [("digits", resident), ("pydoc_topics", continued)])
def test_chance_is_that_of_the_data_set(name, make, tmp_path):
    dataset, source = DATASETS[name](), make(tmp_path)
    train = dataset.load("train")
    for split in SPLITS:
        assert source.chance(split=split) == dataset.chance(train, dataset.load(split))


def test_facts_are_there_where_a_data_set_has_them(source):
    facts = source.facts
    assert (facts.chance is None) == isinstance(source, Drawn)
    text = isinstance(source, Continued | Streamed)
    assert (facts.tokenizer is not None) == text
    if text:
        assert facts.tokenizer.size == source.spec.inputs
    assert facts.baselines is None and facts.frequencies is None


def test_every_source_can_be_closed_and_asked_again(source):
    first = source.ids(0, 0, 1)
    source.close()
    source.close()
    jax.tree.map(np.testing.assert_array_equal, source.ids(0, 0, 1), first)


def test_baselines_are_those_of_the_test_rows(tmp_path):
    config = tiny("gru")
    source_dir = tmp_path / "src"
    source_dir.mkdir()
    for n in range(40):
        (source_dir / f"m{n}.py").write_text(f"x{n} = {'1' * n}  # é\n" * 3)
    set_task(config, "python_tokens", source_dir=str(source_dir), window=32)
    dataset = DATASETS["python_tokens"](32, str(source_dir))
    train, test = map(dataset.load, ("train", "test"))
    assert build_source(config).facts.baselines == dataset.baselines(train, test)
