"""Texts that are parts of others: on one side of a split, whatever their rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from written_sets import example, prepare_like

from seqmodels.data.nested import carve, parts
from seqmodels.data.public import Public

words = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)
texts = st.lists(words.map(" ".join), max_size=12)


def holds(text, part):
    """By the letters: single letters between spaces."""
    return f" {part} " in f" {text} "


@given(texts, st.integers(1, 3))
def test_no_text_of_one_part_stands_in_one_of_the_other(texts, every):
    rows = carve(texts, every)
    train, valid = ([texts[row] for row in rows[split]] for split in ("train", "valid"))
    for one in valid:
        assert not any(holds(one, other) or holds(other, one) for other in train)
        assert not any(holds(other, one) for other in texts if other != one), "valid is whole"
    left = set(range(len(texts))) - {*rows["train"].tolist(), *rows["valid"].tolist()}
    assert all(any(holds(one, texts[row]) for one in valid) for row in left), "nothing else goes"
    whole = {one for one in texts if not any(holds(two, one) for two in texts if two != one)}
    assert len(set(valid)) == len(whole) // every


def test_parts_are_all_runs_of_words_but_the_whole():
    assert set(parts(("a", "b", "c"))) == {(), ("a",), ("b",), ("c",), ("a", "b"), ("b", "c")}


def test_phrases_of_sst2_are_not_divided_between_train_and_valid(tmp_path):
    """Row by row, every tenth phrase of a sentence whose others are trained on was valid."""
    sentences = [f"film {n} is a {'very ' * (n % 3)}dull one" for n in range(30)]
    phrases = [s for n, s in enumerate(sentences) for s in (f"film {n}", s, "dull one", s[:-4])]
    written = [example("glue/sst2", n) | {"sentence": s} for n, s in enumerate(phrases)]
    splits = {"train": written, "validation": written[:3], "test": written[:3]}
    prepare_like("glue/sst2", tmp_path, splits)
    dataset = Public("glue/sst2", tokens="byte")
    tokenizer = dataset.tokenizer()

    def loaded(split):
        rows = dataset.load(split, tmp_path)
        assert len(rows.starts) == len(dataset.ids(split, tmp_path))
        return [tokenizer.decode(text) for text in np.split(rows.inputs, rows.starts[1:])]

    train, valid = loaded("train"), loaded("valid")
    assert valid == sentences[9::10] and len(train) == 3 * 27
    assert not any(holds(one, other) for one in valid for other in train)
