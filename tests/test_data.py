"""Data sets: one contract for every line of the table, then what each set promises of its own."""

import importlib
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import jax
import numpy as np
import placed
import pytest

from seqmodels.data import DATASETS, Digits, PythonTokens
from seqmodels.data.prepare import SPLITS
from seqmodels.data.python_tokens import split_of
from seqmodels.data.rows import take
from seqmodels.data.token_kinds import KINDS, label_bytes
from seqmodels.types import RESERVED

SOURCES = {f"folder/module_{n}.py": f"x{n} = 'ä' * {n}  # é\n".encode() * n for n in range(1, 41)}

# One line for each data set: how to make it small, and the ids of all its examples.
CASES = {
    "digits": lambda sources: (Digits(), range(1797)),
    "python_tokens": lambda sources: (PythonTokens(window=100, source_dir=sources), SOURCES),
}


# Where the others are asked for as much: in each of these files, by tests of these names.
DISJOINT, CHANCE = "test_.*splits.*", "test_.*chance.*"
ELSEWHERE = {
    **dict.fromkeys(placed.CASES, "test_data_placed"),
    "public": "test_public",
    "pydoc_topics": "test_pydoc_topics",
    "temperatures": "test_temperatures",
    "text_files": "test_text_files",
}


def write_files(root: Path, files: dict[str, bytes]) -> str:
    for name, contents in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(contents)
    return str(root)


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("sources"), SOURCES)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def batch_of(dataset, split, data_dir):
    """All rows of a split as one padded batch."""
    rows = dataset.load(split, data_dir)
    ids = np.arange(len(rows.lengths), dtype=np.int32)
    batch = take(rows, ids, int(rows.lengths.max()), dataset.spec.per_step)
    return batch._replace(**{k: np.asarray(v) for k, v in batch._asdict().items() if v is not None})


@pytest.fixture(params=CASES)
def case(request, sources):
    return CASES[request.param](sources)


@pytest.fixture
def dataset(case):
    return case[0]


# The contract of every data set.


def test_J03_splits_are_disjoint_and_complete(case, data_dir, tmp_path):
    dataset, everything = case
    ids = {split: dataset.ids(split, data_dir) for split in SPLITS}
    for one, other in combinations(SPLITS, 2):
        assert not set(ids[one]) & set(ids[other])
    assert set().union(*ids.values()) == set(everything)
    for split in SPLITS:
        assert len(ids[split]) == len(dataset.load(split, data_dir).lengths)
        np.testing.assert_array_equal(ids[split], dataset.ids(split, tmp_path))  # prepared anew


@pytest.mark.parametrize("split", SPLITS)
def test_batch_has_the_shapes_and_ranges_of_the_spec(dataset, split, data_dir):
    spec, batch = dataset.spec, batch_of(dataset, split, data_dir)
    rows, steps = batch.mask.shape
    terms = (rows, steps) if spec.per_step else (rows,)
    assert (batch.mask.dtype, batch.reset) == (bool, None)
    assert batch.mask[:, 0].all()  # no empty rows, and padding comes last
    assert not (batch.mask[:, 1:] & ~batch.mask[:, :-1]).any()
    assert (batch.targets.shape, batch.targets.dtype) == (terms, np.int32)
    assert set(np.unique(batch.targets)) <= set(range(spec.outputs))
    assert (batch.weights.shape, batch.weights.dtype) == (terms, np.float32)
    np.testing.assert_array_equal(batch.weights, batch.mask if spec.per_step else np.ones(rows))
    if spec.tokens:
        assert (batch.inputs.shape, batch.inputs.dtype) == ((rows, steps), np.int32)
        assert batch.inputs.min() >= 0 and batch.inputs.max() < spec.inputs
        np.testing.assert_array_equal(batch.inputs == 0, ~batch.mask)
    else:
        assert batch.inputs.shape == (rows, steps, spec.inputs)
        assert batch.inputs.dtype == np.float32


def test_loading_twice_gives_the_same_rows(dataset, data_dir):
    first, second = (dataset.load("train", data_dir) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("split", SPLITS)
def test_no_constant_answer_and_no_blind_guess_beats_chance(dataset, split, data_dir):
    """Whatever is common in training: on no split does it leave less than 1 / classes."""
    train, scored = (dataset.load(name, data_dir) for name in ("train", split))
    batch = batch_of(dataset, split, data_dir)
    targets = batch.targets[batch.weights > 0].tolist()
    best = max(targets.count(answer) for answer in range(dataset.spec.outputs)) / len(targets)
    chance = dataset.chance(train, scored)
    assert chance == pytest.approx(best) and 1 / dataset.spec.outputs <= chance < 1


@pytest.mark.parametrize("ask", ["load", "ids"])
def test_unknown_split_names_the_allowed_ones(dataset, ask, data_dir):
    with pytest.raises(ValueError, match="'dev' is unknown; allowed: train, valid, test$"):
        getattr(dataset, ask)("dev", data_dir)


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_has_its_splits_and_its_chance_tested(name, sources):
    """Here, or in a file of its own."""
    assert (name in CASES) != (name in ELSEWHERE)
    if name in CASES:
        assert type(CASES[name](sources)[0]) is DATASETS[name]
        return
    module = importlib.import_module(ELSEWHERE[name])
    for promise in (DISJOINT, CHANCE):
        assert any(re.fullmatch(promise, test) for test in dir(module)), promise
    if name in placed.CASES:
        assert type(placed.CASES[name][0]) is DATASETS[name]
    else:
        assert getattr(module, DATASETS[name].__name__) is DATASETS[name]


def test_the_table_is_that_of_the_tests():
    assert CASES.keys() | ELSEWHERE.keys() == DATASETS.keys()


def test_importing_the_table_is_cheap():
    heavy = "{'tensorflow_datasets', 'sklearn', 'grain'}"
    check = f"import sys, seqmodels.data; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=Path(__file__).parents[1])


# Digits.


def test_digits_are_the_images_of_scikit_learn_in_fixed_splits(data_dir):
    from sklearn.datasets import load_digits

    images, digits = load_digits(), Digits()
    order = np.random.default_rng(0).permutation(1797)
    for split, chosen in zip(SPLITS, np.split(order, [1200, 1400]), strict=True):
        batch = batch_of(digits, split, data_dir)
        np.testing.assert_array_equal(digits.ids(split, data_dir), chosen)
        np.testing.assert_array_equal(batch.inputs[:, :, 0] * 16, images.data[chosen])
        np.testing.assert_array_equal(batch.targets, images.target[chosen])


# Python tokens.

LETTERS = dict(zip(".nkosdc", KINDS, strict=True))  # one letter a kind, to write labels below
LABELLED = {
    "keyword, name, soft keyword": (
        "if match is None: café += 1.5e3\n",
        "kk.nnnnn.kk.kkkko.nnnnn.oo.ddddd.",
    ),
    "non-ASCII in strings, two on a line": (
        "x = 'é€𝄞', b'y' # ü\n",
        "n.o." + "s" * 11 + "o.ssss.cccc.",
    ),
    "docstring over lines": (
        'def f():\n  """é if\n  1"""\n  pass',
        "kkk.nooo..." + "s" * 15 + "...kkkk",
    ),
    "quote in a comment, hash in a string": ("a#'b\n'#'", "nccc.sss"),
    "f-string with fields and nested quotes": (
        "f'a{{b}}{x!r:>{w}} é' + rf\"{y['k']}\"",
        "s" * 22 + ".o." + "s" * 12,
    ),
    "continuation and line ends of Windows": ("a = \\\r\n  1\r\n", "n.o......d.."),
}


@pytest.mark.parametrize("source, labels", LABELLED.values(), ids=LABELLED)
def test_each_byte_has_the_kind_of_its_token(source, labels):
    kinds = [KINDS[kind] for kind in label_bytes(source.encode())]
    assert kinds == [LETTERS[letter] for letter in labels]


@pytest.mark.parametrize("source", ["'''open", "(", "  a\n b\n", "a = $"])
def test_source_that_does_not_tokenize_is_refused(source):
    with pytest.raises(ValueError, match="does not tokenize"):
        label_bytes(source.encode())


@pytest.mark.parametrize("window", [100, None])
def test_J04_windows_put_together_are_the_file(window, sources, data_dir):
    dataset = PythonTokens(window=window, source_dir=sources)
    for split in SPLITS:
        batch, ids = batch_of(dataset, split, data_dir), dataset.ids(split, data_dir)
        for name in np.unique(ids):
            assert split_of(name) == split
            mask = batch.mask[ids == name]
            assert mask[:-1].all()  # only the last window is padded
            assert window or len(mask) == 1  # a whole file
            source = (batch.inputs[ids == name][mask] - RESERVED).astype(np.uint8).tobytes()
            assert source == SOURCES[name]
            assert batch.targets[ids == name][mask].tolist() == list(label_bytes(source))


def test_only_readable_utf8_sources_that_are_no_tests_are_used(tmp_path):
    usable = SOURCES | {
        "mark.py": b"\xef\xbb\xbfname",
        "declared.py": b"# coding: latin-1\nascii\n",
    }
    ignored = {
        "empty.py": b"",
        "notes.txt": b"text",
        "broken.py": b"'''",
        "bytes.py": b"x = '\xff'\n",
        "latin.py": "# coding: latin-1\n'é'\n".encode("latin-1"),
        "declared_wrongly.py": "# coding: latin-1\n'é'\n".encode(),
        "no_codec.py": b"# coding: klingon\n",
        "no_text_codec.py": b"# coding: rot13\n",
        "test/test_a.py": b"a\n",
        "b/tests/b.py": b"b\n",
        "site-packages/c.py": b"c\n",
    }
    dataset = PythonTokens(source_dir=write_files(tmp_path / "src", usable | ignored))
    rows = {split: dataset.ids(split, tmp_path / "data") for split in SPLITS}
    assert set(np.concatenate(list(rows.values()))) == set(usable)
    split = split_of("mark.py")
    row = batch_of(dataset, split, tmp_path / "data").inputs[rows[split] == "mark.py"]
    assert bytes((row[row > 0] - RESERVED).tolist()) == b"name"  # without the byte order mark


def test_changed_sources_are_prepared_anew(tmp_path):
    dataset = PythonTokens(source_dir=write_files(tmp_path / "src", SOURCES))
    before = dataset.load("train", tmp_path / "data")
    first = next(name for name in SOURCES if split_of(name) == "train")
    write_files(tmp_path / "src", {first: SOURCES[first].replace(b"x", b"y")})
    after = dataset.load("train", tmp_path / "data")
    assert (before.inputs != after.inputs).sum() == SOURCES[first].count(b"x")


def test_impossible_settings_are_refused(tmp_path):
    with pytest.raises(ValueError, match="window is 0; allowed: None, or 1 or more bytes"):
        PythonTokens(window=0)
    source_dir = write_files(tmp_path / "src", dict.fromkeys(SOURCES, b""))
    with pytest.raises(ValueError, match=f"no usable Python file below {source_dir} for split"):
        PythonTokens(source_dir=source_dir).load("train", tmp_path / "data")
