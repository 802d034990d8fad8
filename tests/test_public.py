"""Public TFDS sets: read from directories as TFDS prepares them, without TensorFlow or network."""

import importlib.util
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from written_sets import example, images, prepare_like, real_builder

from seqmodels.data import public
from seqmodels.data.prepare import DATA_DIR_VARIABLE, SPLITS
from seqmodels.data.public import Public
from seqmodels.data.public_sets import SOURCES
from seqmodels.data.tokenizers import BORDER, RESERVED, UNKNOWN, ByteTokenizer, WordTokenizer

tfds = pytest.importorskip("tensorflow_datasets")
OFFICIAL = {name: tuple(dict.fromkeys(filter(None, s.splits))) for name, s in SOURCES.items()}
SILENT = [name for name, source in SOURCES.items() if source.kind != "audio"]
TEXTS = [name for name, source in SOURCES.items() if source.kind == "text"]
IMAGES = [name for name, source in SOURCES.items() if source.kind == "image"]
LANGUAGE = [name for name, source in SOURCES.items() if source.kind == "language"]


@pytest.fixture(autouse=True)
def without_tensorflow(monkeypatch):
    """Even where it is installed: nothing may be downloaded."""
    find = importlib.util.find_spec
    hide = {"tensorflow": lambda name, *rest: None}
    patched = lambda name, *rest: hide.get(name, find)(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", patched)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Every set but audio: 23 examples for each official split, numbered through."""
    directory = tmp_path_factory.mktemp("data")
    for name in SILENT:
        splits, number = {}, 0
        for split in OFFICIAL[name]:
            drawn = images(name, 23, number) if name in IMAGES else [None] * 23
            splits[split] = [example(name, number + n, one) for n, one in enumerate(drawn)]
            number += 23
        if name == "glue/sst2":  # as it is: without the labels
            splits["test"] = [one | {"label": -1} for one in splits["train"]]
        prepare_like(name, directory, splits)
    return directory


# The table.


@pytest.mark.parametrize("name", SILENT)
def test_the_table_agrees_with_tfds(name, tmp_path):
    source, features = SOURCES[name], real_builder(name, tmp_path).info.features
    for feature in source.features:
        kind = tfds.features.Image if source.kind == "image" else tfds.features.Text
        assert isinstance(features[feature], kind)
    if source.kind == "image":
        height, width, channels = features["image"].shape
        assert source.shape == (height * width, channels)
    assert source.classes == (features["label"].num_classes if "label" in features else 0)
    assert (source.kind == "language") == (source.classes == 0)


# What is read.


@pytest.mark.parametrize("name", SILENT)
def test_splits_are_the_official_ones_and_valid_is_carved_where_there_is_none(name, data_dir):
    dataset = Public(name)
    ids = {split: dataset.ids(split, data_dir).tolist() for split in SPLITS}
    train, valid, test = SOURCES[name].splits
    assert ids["test"] == [f"{test}/{n}" for n in range(23)]
    if valid:
        assert ids["train"] == [f"{train}/{n}" for n in range(23)]
        assert ids["valid"] == [f"{valid}/{n}" for n in range(23)]
    else:
        assert ids["valid"] == [f"{train}/9", f"{train}/19"]
        assert ids["train"] == [f"{train}/{n}" for n in range(23) if n not in (9, 19)]
    for split in SPLITS:
        data = dataset.load(split, data_dir)
        assert len(data.starts) == len(ids[split])
        if name not in LANGUAGE:
            offset = 23 * OFFICIAL[name].index(ids[split][0].split("/")[0])
            numbers = [int(one.split("/")[1]) + offset for one in ids[split]]
            assert data.targets.dtype == np.int32
            assert data.targets.tolist() == [n % SOURCES[name].classes for n in numbers]


@pytest.mark.parametrize("name", TEXTS)
def test_texts_come_back_from_bytes(name, data_dir):
    data = Public(name).load("test", data_dir)
    text = " ".join(["Text {}, é"] * len(SOURCES[name].features))
    for n, (start, length) in enumerate(zip(data.starts, data.lengths, strict=True), 23):
        ids = data.inputs[start : start + length]
        assert ByteTokenizer().decode(ids) == text.replace("{}", str(n))
    short = Public(name, max_length=7).load("test", data_dir)
    assert set(short.lengths) == {7}
    assert ByteTokenizer().decode(short.inputs[7:14]) == "Text 24"


@pytest.mark.parametrize("name", TEXTS)
def test_words_are_those_of_the_training_part(name, data_dir):
    dataset = Public(name, tokens="word", words=9)
    tokenizer = dataset.tokenizer(data_dir)
    # Numbers occur once in a text, so twice only where a text has two parts; never those of valid.
    assert set(tokenizer.words) >= {"text", ",", "é"} and not {"9", "19"} & set(tokenizer.words)
    assert len(tokenizer.words) == (9 if len(SOURCES[name].features) > 1 else 3)
    assert dataset.spec.inputs == RESERVED + 9
    for split in SPLITS:
        data = dataset.load(split, data_dir)
        row = data.inputs[: data.lengths[0]]
        number = dataset.ids(split, data_dir)[0].split("/")[1]
        if split != "train":
            parts = ["text \ufffd , é"] * len(SOURCES[name].features)
            assert tokenizer.decode(row) == " ".join(parts), number
            assert (row == UNKNOWN).sum() == len(parts)
        assert data.inputs.max() < dataset.spec.inputs
    assert Public(name, tokens="word").spec.inputs == RESERVED + 20_000


@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize("tokens", ["byte", "word"])
def test_language_sets_are_documents_between_borders(name, tokens, data_dir, monkeypatch):
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(data_dir))  # where `spec` looks
    dataset = Public(name, tokens=tokens)
    data, tokenizer = dataset.load("test", data_dir), dataset.tokenizer(data_dir)
    assert isinstance(tokenizer, WordTokenizer if tokens == "word" else ByteTokenizer)
    first = 23 * OFFICIAL[name].index("test")
    lines = [f"Line {n}\n" for n in range(first, first + 23)]
    expected = [BORDER]
    for line in lines:
        expected += [*tokenizer.encode(line), BORDER]
    assert data.targets is None and data.inputs.tolist() == expected
    assert data.lengths.tolist() == [len(tokenizer.encode(line)) + 2 for line in lines]
    assert dataset.spec.inputs == dataset.spec.outputs == tokenizer.size


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_their_pixels_in_row_major_order(name, data_dir):
    steps, channels = SOURCES[name].shape
    expected = images(name, 23, 23).reshape(23, steps, channels) / 255
    data = Public(name).load("test", data_dir)
    assert data.inputs.dtype == np.float32 and set(data.lengths) == {steps}
    np.testing.assert_allclose(data.inputs.reshape(23, steps, channels), expected, rtol=1e-6)
    permuted = Public(name, permuted=True)
    seen = permuted.load("test", data_dir).inputs.reshape(23, steps, channels)
    order = np.random.default_rng(0).permutation(steps)
    np.testing.assert_allclose(seen, expected[:, order], rtol=1e-6)
    carved = images(name, 23)[9].reshape(steps, channels) / 255  # the same order everywhere
    valid = permuted.load("valid", data_dir).inputs[:steps]
    np.testing.assert_allclose(valid, carved[order], rtol=1e-6)


def test_sounds_are_cut_into_frames(monkeypatch):
    samples = np.arange(-6, 7, dtype=np.int16) * 2**12
    sounds = [{"audio": samples[:n], "label": n % 12} for n in (13, 8, 1)]

    class Builder:
        def as_data_source(self, split):
            return {"train": [], "validation": sounds, "test": []}[split]

    monkeypatch.setattr(public, "_builder", lambda name, data_dir: Builder())
    dataset = Public("speech_commands", frame=4)
    data = dataset.load("valid")
    assert data.lengths.tolist() == [4, 2, 1] and data.targets.tolist() == [1, 8, 1]
    assert data.inputs.shape == (7, 4) == (7, dataset.spec.inputs)
    assert data.inputs.dtype == np.float32
    np.testing.assert_array_equal(data.inputs[:4].ravel()[:13], samples / 2**15)
    np.testing.assert_array_equal(data.inputs[3, 1:], 0)
    assert Public("speech_commands").spec.inputs == 160
    with pytest.raises(ValueError, match="^speech_commands has no examples for split 'train'$"):
        dataset.load("train")


@pytest.mark.parametrize("split", SPLITS)
def test_chance_is_the_majority_or_the_frequencies_of_train(split, data_dir):
    def loaded(dataset):
        return [dataset.load(name, data_dir) for name in ("train", split)]

    most = {"train": 3 / 21, "valid": 1.0, "test": 3 / 23}[split]
    assert Public("mnist").chance(*loaded(Public("mnist"))) == pytest.approx(most)
    dataset = Public("lm1b")
    train, scored = (rows.inputs[1:] for rows in loaded(dataset))
    counts = np.bincount(train, minlength=259) + 1.0
    expected = -np.log2(counts[scored] / counts[1:].sum()).mean()
    assert dataset.chance(*loaded(dataset)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["imdb_reviews", "tiny_shakespeare"])
def test_part_of_a_set_is_its_first_examples(name, data_dir):
    dataset = Public(name, max_examples=2)
    for split in SPLITS:
        whole, part = Public(name).load(split, data_dir), dataset.load(split, data_dir)
        assert (
            dataset.ids(split, data_dir).tolist() == Public(name).ids(split, data_dir)[:2].tolist()
        )
        np.testing.assert_array_equal(part.lengths, whole.lengths[:2])
        np.testing.assert_array_equal(part.inputs, whole.inputs[: len(part.inputs)])


@pytest.mark.parametrize("name", SILENT)
def test_mocked_data_have_the_shapes_of_the_spec(name, data_dir):
    dataset = Public(name)
    spec = dataset.spec
    with tfds.testing.mock_data(num_examples=20, data_dir=str(data_dir)):
        for split in SPLITS:
            data = dataset.load(split, data_dir)
            assert (data.starts.dtype, data.lengths.dtype) == (np.int32, np.int32)
            assert data.lengths.min() >= 1
            if spec.tokens:
                assert data.inputs.dtype == np.int32
                assert data.inputs.min() >= UNKNOWN and data.inputs.max() < spec.inputs
            else:
                assert data.inputs.dtype == np.float32 and data.inputs.shape[1] == spec.inputs
                assert data.inputs.min() >= 0 and data.inputs.max() <= 1
            if spec.per_step:
                assert data.targets is None
            else:
                assert data.targets.shape == (len(data.starts),)
                assert set(data.targets) <= set(range(spec.outputs))


# What cannot be read.


def test_what_is_not_prepared_is_one_line_with_the_way_to_prepare_it(tmp_path):
    with pytest.raises(OSError, match=r"^glue/sst2 is not prepared in ") as error:
        Public("glue/sst2").load("train", tmp_path)
    message = str(error.value)
    assert f"{tmp_path}/glue/sst2/2.0.0" in message and "\n" not in message
    assert message.endswith(
        "pip install 'seqmodels[prepare]', then: tfds build glue/sst2 "
        f"--file_format=array_record --data_dir={tmp_path}"
    )
    with pytest.raises(OSError, match="^speech_commands needs TensorFlow even to be read"):
        Public("speech_commands").load("train", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_format_without_random_access_is_one_line(tmp_path):
    numbered = [example("imdb_reviews", n) for n in range(20)]
    prepare_like("imdb_reviews", tmp_path, {"train": numbered, "test": numbered})
    (info,) = tmp_path.rglob("dataset_info.json")
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    message = f"^imdb_reviews is stored in {info.parent} in a format without random access; .*$"
    with pytest.raises(OSError, match=message):
        Public("imdb_reviews").load("train", tmp_path)


def test_more_steps_than_can_be_indexed_are_refused(monkeypatch, data_dir):
    monkeypatch.setattr(public, "MOST_STEPS", 100)
    with pytest.raises(ValueError, match="^lm1b has over 100 steps in train; set max_examples$"):
        Public("lm1b").load("train", data_dir)


@dataclass
class Refused:
    settings: dict[str, Any]
    message: str


@pytest.mark.parametrize(
    "refused",
    [
        Refused({"set": "ptb"}, "set is 'ptb'; allowed: mnist, .*"),
        Refused({"set": "mnist", "tokens": "byte"}, "tokens is no setting of mnist; allowed: .*"),
        Refused({"set": "lm1b", "max_length": 9}, "max_length is no setting of lm1b; allowed: .*"),
        Refused({"set": "lm1b", "permuted": False}, "permuted is no setting of lm1b; .*"),
        Refused({"set": "mnist", "frame": 9}, "frame is no setting of mnist; .*"),
        Refused({"tokens": "char"}, "tokens is 'char'; allowed: 'byte', 'word'"),
        Refused({"words": 9}, "words is a setting of tokens 'word' only"),
        Refused({"tokens": "word", "words": 0}, "words is 0; allowed: None, 1 or more"),
        Refused({"max_length": 0}, "max_length is 0; allowed: None, 1 or more"),
        Refused({"set": "speech_commands", "frame": 0}, "frame is 0; allowed: None, 1 or more"),
        Refused({"max_examples": 0}, "max_examples is 0; allowed: None, 1 or more"),
    ],
    ids=lambda refused: str(refused.settings),
)
def test_impossible_settings_are_refused(refused):
    with pytest.raises(ValueError, match=f"^{refused.message}$"):
        Public(**refused.settings)


def test_settings_belong_to_some_set_and_splits_are_known(data_dir):
    known = {name for settings in public.SETTINGS.values() for name in settings}
    assert known == {field.name for field in fields(Public)} - {"set", "max_examples"}
    with pytest.raises(ValueError, match="'dev' is unknown; allowed: train, valid, test$"):
        Public("mnist").load("dev", data_dir)
    with pytest.raises(ValueError, match="^mnist has no texts, so no tokenizer$"):
        Public("mnist").tokenizer(data_dir)
