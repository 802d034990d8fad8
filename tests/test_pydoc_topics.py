"""Topics of the running Python, character by character."""

from itertools import combinations
from pydoc_data import topics as pydoc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmodels.data import rows
from seqmodels.data.prepare import SPLITS
from seqmodels.data.pydoc_topics import RUN, PydocTopics, cut, distinct
from seqmodels.data.tokenizers import BORDER, UNKNOWN


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


texts = st.dictionaries(st.text("abc", min_size=1), st.text("xyz", max_size=40), max_size=8)


@given(texts)
def test_pieces_of_the_splits_put_together_are_all_topics(topics):
    pieces = [piece for split in SPLITS for piece in cut(topics, split)]
    assert "".join(piece.text for piece in pieces) == "".join(topics[k] for k in sorted(topics))
    for piece in pieces:
        text = topics[piece.topic]
        assert piece.text and text[piece.first :].startswith(piece.text)
        assert piece.ends == (piece.first + len(piece.text) == len(text))
    total = sum(map(len, topics.values()))
    for split, share in zip(SPLITS, (0.85, 0.05, 0.1), strict=True):
        assert abs(sum(len(piece.text) for piece in cut(topics, split)) - share * total) <= 1


@given(st.dictionaries(st.text("abc", min_size=1), st.text("xy", max_size=12), max_size=6))
def test_distinct_topics_share_no_run_and_each_other_one_does(topics):
    def runs(text):
        return {text[n : n + 4] for n in range(len(text) - 3)}

    kept = distinct(topics, run=4)
    assert kept.items() <= topics.items()
    for one, other in combinations(kept.values(), 2):
        assert not runs(one) & runs(other)
    for topic in topics.keys() - kept.keys():
        longer = [text for text in kept.values() if len(text) >= len(topics[topic])]
        assert any(runs(topics[topic]) & runs(text) for text in longer)


def test_no_passage_of_valid_or_test_stands_in_train(data_dir):
    """By the texts themselves: topics of different names may have the same sections."""
    dataset = PydocTopics()

    def runs(split):
        data, found = dataset.load(split, data_dir), set()
        for start, length in zip(data.starts, data.lengths, strict=True):
            text = dataset.tokenizer(data_dir).decode(data.inputs[start : start + length])
            found |= {text[first : first + RUN] for first in range(len(text) - RUN + 1)}
        return found

    train, valid, test = map(runs, SPLITS)
    assert min(map(len, (train, valid, test))) > 5000
    assert not train & test
    assert not train & valid and not valid & test


def test_topics_come_back_from_ids_cut_only_between_splits(data_dir):
    dataset = PydocTopics()
    tokenizer, found, reset = dataset.tokenizer(data_dir), [], 0
    for split in SPLITS:
        data = dataset.load(split, data_dir)
        stream = rows.as_stream(data)
        assert len(np.unique(data.starts)) == len(data.starts) == stream.reset.sum()
        assert (data.inputs[data.starts[1:]] == BORDER).all()  # each later row starts at one ...
        assert (data.inputs == BORDER).sum() == len(data.starts) - 1 + (split != "valid")
        for n, (start, length) in enumerate(zip(data.starts, data.lengths, strict=True)):
            row = data.inputs[start : start + length]
            assert (row[1:-1] != BORDER).all()
            if split == "train" and n < len(data.starts) - 1:
                assert (row[0], row[-1]) == (BORDER, BORDER)  # ... and ends at the next
        found.append(tokenizer.decode(data.inputs))
        reset += len(data.starts)
    topics = distinct(pydoc.topics)
    assert sum(map(len, topics.values())) > 0.7 * sum(map(len, pydoc.topics.values()))
    everything = "".join(text for _, text in sorted(topics.items()))
    seen = set(everything[: len(found[0])])
    expected = "".join(one if one in seen else "\ufffd" for one in everything)
    assert "".join(found) == expected
    assert reset == len(topics) + 2  # two topics are cut


def test_topics_meet_the_contract_of_data_sets(data_dir, tmp_path):
    dataset = PydocTopics()
    spec, seen = dataset.spec, set()
    assert spec == dataset.spec and spec.inputs == spec.outputs
    assert spec.inputs == dataset.tokenizer(data_dir).size
    for split in SPLITS:
        data, ids = dataset.load(split, data_dir), dataset.ids(split, data_dir)
        assert (data.inputs.dtype, data.starts.dtype, data.lengths.dtype) == (np.int32,) * 3
        assert data.inputs.min() >= UNKNOWN and data.inputs.max() < spec.inputs
        assert len(ids) == len(data.starts) and not seen & set(ids)
        seen |= set(ids)
        np.testing.assert_array_equal(ids, dataset.ids(split, tmp_path))  # prepared anew
    with pytest.raises(ValueError, match="'dev' is unknown; allowed: train, valid, test$"):
        dataset.load("dev", data_dir)
    with pytest.raises(ValueError, match="'dev' is unknown"):
        dataset.ids("dev", data_dir)


def test_all_topics_can_be_had_with_their_repeats(data_dir):
    dataset = PydocTopics(repeats=True)
    found = "".join(
        dataset.tokenizer(data_dir).decode(dataset.load(split, data_dir).inputs) for split in SPLITS
    )
    assert len(found) == sum(map(len, pydoc.topics.values()))
    assert dataset.spec.inputs == dataset.tokenizer(data_dir).size
    assert len(dataset.ids("test", data_dir)) > len(PydocTopics().ids("test", data_dir))


@pytest.mark.parametrize("split", SPLITS)
def test_chance_of_topics_is_the_cross_entropy_of_frequencies(split, data_dir):
    dataset = PydocTopics()

    def targets(split):
        data = dataset.load(split, data_dir)
        row = zip(data.starts, data.lengths, strict=True)
        return np.concatenate([data.inputs[start + 1 : start + length] for start, length in row])

    counts = np.bincount(targets("train"), minlength=dataset.spec.outputs) + 1.0
    outcomes = counts[1:].sum()  # padding is none
    expected = -np.log2(counts[targets(split)] / outcomes).mean()
    chance = dataset.chance(*(dataset.load(name, data_dir) for name in ("train", split)))
    assert chance == pytest.approx(expected)
    assert 4 < chance < 5.5  # of English text in 8 bits a byte


def test_changed_topics_are_another_data_set(monkeypatch, data_dir, tmp_path):
    before = PydocTopics().load("train", data_dir).inputs, PydocTopics().spec
    monkeypatch.setattr(pydoc, "topics", {"a": "ab" * 50, "b": "é" * 10})
    assert PydocTopics().spec.inputs == 5
    assert PydocTopics().load("train", data_dir).inputs.tolist() == [2] + [3, 4] * 47
    assert PydocTopics().ids("test", data_dir).tolist() == ["a[99:100]", "b[0:10]"]
    assert (PydocTopics().load("test", data_dir).inputs == UNKNOWN).sum() == 10
    monkeypatch.undo()
    np.testing.assert_array_equal(PydocTopics().load("train", data_dir).inputs, before[0])
    assert PydocTopics().spec == before[1]
