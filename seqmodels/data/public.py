"""Public data sets of TensorFlow Datasets, each by one line of config.

Preparing them needs TensorFlow (`pip install 'seqmodels[prepare]'`) and the network; what was
prepared once, here or on another machine, is read without both, images by Pillow. Audio is the
exception: TFDS does not even open such a set without TensorFlow.
"""

import functools
import importlib
import importlib.util
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqmodels.data.chance import majority_accuracy
from seqmodels.data.nested import carve
from seqmodels.data.prepare import check_split, default_data_dir, opened, prepare, undamaged
from seqmodels.data.public_sets import SETTINGS, SOURCES, Entry
from seqmodels.data.rows import Rows, pack
from seqmodels.data.tokenizers import (
    ByteTokenizer,
    Tokenizer,
    WordTokenizer,
    bordered,
    target_counts,
    unigram_bits,
)
from seqmodels.types import RESERVED, Spec

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

MIN_COUNT = 2  # in the training texts, for a word to be in the vocabulary
MOST_STEPS = 2**31 - 1  # positions in a split are int32
CARVED = 10  # without an official valid split, it is every tenth row of train


@dataclass(frozen=True)
class Public:
    """A set of SOURCES. Settings are None where they do not apply, or for what SETTINGS has.

    set           its name in TFDS
    tokens        of texts: "byte", or "word" (lower-cased, with marks of punctuation)
    words         vocabulary of "word": so many, the commonest of train that it has twice or more
    max_length    bytes or words of a text, the rest is cut off; None: all of it
    permuted      True: pixels in one order drawn at random, the same for all images
    frame         samples of a sound that make one step; at 16 kHz, 160 are 10 ms
    max_examples  of each split, its first ones; None: all

    Splits are the official ones; where there is no valid, every tenth row of the official train
    split is it, and train has the others. Of glue/sst2 the official valid is the test, whose own
    labels are not public, and every tenth whole sentence of train is valid, whose phrases are left
    out of train (`nested.carve`). Otherwise rows are told apart by number alone: texts that occur
    twice, reviews of one film or shop, and phrases of one sentence of glue/sst2 that is not whole
    in it may stand in train and valid.

    All that is used stands in memory: of lm1b, with 30 million sentences, ask for a part.
    """

    set: str = "imdb_reviews"
    tokens: str | None = None
    words: int | None = None
    max_length: int | None = None
    permuted: bool | None = None
    frame: int | None = None
    max_examples: int | None = None

    def __post_init__(self) -> None:
        if self.set not in SOURCES:
            raise ValueError(f"set is {self.set!r}; allowed: {', '.join(SOURCES)}")
        applies = SETTINGS[SOURCES[self.set].kind]
        for name in ("tokens", "words", "max_length", "permuted", "frame"):
            if getattr(self, name) is not None and name not in applies:
                raise ValueError(f"{name} is no setting of {self.set}; allowed: {list(applies)}")
        if self.tokens not in (None, "byte", "word"):
            raise ValueError(f"tokens is {self.tokens!r}; allowed: 'byte', 'word'")
        if self.words is not None and self.tokens != "word":
            raise ValueError("words is a setting of tokens 'word' only")
        for name in ("words", "max_length", "frame", "max_examples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: None, 1 or more")

    @property
    def spec(self) -> Spec:
        """Follows from the settings, but for language models of words: from their vocabulary. In
        classification it may be smaller than the table of embeddings."""
        source, kind = SOURCES[self.set], SOURCES[self.set].kind
        if kind in ("image", "audio"):
            inputs = source.shape[1] if kind == "image" else self._setting("frame")
            return Spec(inputs, False, source.classes, False, "cross_entropy", "accuracy")
        size = ByteTokenizer.size
        if self._setting("tokens") == "word":
            size = RESERVED + self._setting("words")
        if kind == "language":
            if self._setting("tokens") == "word":  # unused outputs would be learnt, and counted
                size = self.tokenizer().size
            return Spec(size, True, size, True, "cross_entropy", "bits")
        return Spec(size, True, source.classes, False, "cross_entropy", "accuracy")

    def tokenizer(self, data_dir: str | Path | None = None) -> Tokenizer:
        """Of words, fitted to the train part. Raises ValueError for images and sounds."""
        if "tokens" not in SETTINGS[SOURCES[self.set].kind]:
            raise ValueError(f"{self.set} has no texts, so no tokenizer")
        if self._setting("tokens") == "byte":
            return ByteTokenizer()
        return _words(self, str(data_dir or default_data_dir()))

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """Texts: ids int32 [P]; images: pixels float32 [P, E] in [0, 1]; sounds: [P, frame] in
        [-1, 1], the last frame filled with zeros. A class for each row, int32 [N]; for language
        models, documents between borders, and the target is the next id.

        Raises ValueError for an unknown split, or one that is empty or too large; OSError if the
        set is not prepared and cannot be.
        """
        check_split(split)
        source = SOURCES[self.set]
        to_steps = self._to_steps(data_dir)
        rows, labels, total = [], [], 0
        for example in self._examples(split, data_dir):
            rows.append(to_steps(example))
            total += len(rows[-1]) + 1  # a border
            if total > MOST_STEPS:
                raise ValueError(
                    f"{self.set} has over {MOST_STEPS} steps in {split}; set max_examples"
                )
            if source.kind != "language":
                labels.append(example["label"])
        if source.kind == "language":
            return bordered(rows)
        inputs, starts, lengths = pack(rows)
        return Rows(inputs, np.array(labels, np.int32), starts, lengths)

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """Official split and position in it of each row, as "train/17", str [N]."""
        name, rows = self._rows(split, self._source(split, data_dir), data_dir)
        return np.array([f"{name}/{row}" for row in rows])

    def chance(self, train: Rows, scored: Rows) -> float:
        """Accuracy of the best answer for all rows alike, in [0, 1]; of language models, bits per
        target from the frequencies in train, each symbol counted once more."""
        if SOURCES[self.set].kind != "language":
            return majority_accuracy(scored)
        return unigram_bits(*(target_counts(rows, self.spec.outputs) for rows in (train, scored)))

    def _setting(self, name: str) -> Any:
        given = getattr(self, name)
        return SETTINGS[SOURCES[self.set].kind][name] if given is None else given

    def _to_steps(self, data_dir: str | Path | None) -> Callable[[dict[str, Any]], np.ndarray]:
        """What makes of an example its inputs, [T] or [T, E]."""
        source = SOURCES[self.set]
        if source.kind == "image":
            steps, _ = source.shape
            order = np.arange(steps)
            if self._setting("permuted"):
                order = np.random.default_rng(0).permutation(steps)
            return lambda example: _pixels(example, source)[order]
        if source.kind == "audio":
            frame = self._setting("frame")
            return lambda example: _frames(example, source, frame)
        tokenizer = self.tokenizer(data_dir)
        most = None if source.kind == "language" else self._setting("max_length")
        return lambda example: tokenizer.encode(_text(example, source))[:most]

    def _examples(self, split: str, data_dir: str | Path | None) -> Iterator[dict[str, Any]]:
        stored = self._source(split, data_dir)
        _, rows = self._rows(split, stored, data_dir)
        if not len(rows):
            raise ValueError(f"{self.set} has no examples for split {split!r}")
        with undamaged(self._place(data_dir)):
            for row in rows:
                yield stored[row]

    def _source(self, split: str, data_dir: str | Path | None) -> Any:
        """The official split that has the rows of this one, by position."""
        check_split(split)
        builder = _builder(self.set, data_dir)
        try:
            with undamaged(self._place(data_dir)):
                return builder.as_data_source(self._official(split)[0])
        except NotImplementedError as error:
            raise OSError(
                f"{self.set} is stored in {builder.data_dir} in a format without random access; "
                f"prepare it anew: {_how(self.set, 'ANOTHER')}"
            ) from error

    def _place(self, data_dir: str | Path | None) -> Path:
        return Path(data_dir or default_data_dir()).expanduser() / self.set

    def _official(self, split: str) -> tuple[str, bool]:
        """Its name, and whether train and valid share it."""
        train, valid, test = SOURCES[self.set].splits
        name = {"train": train, "valid": valid or train, "test": test}[split]
        return name, valid is None and split != "test"

    def _rows(self, split: str, stored: Any, data_dir: str | Path | None) -> tuple[str, np.ndarray]:
        """The official split and the rows of it that this one has."""
        name, shared = self._official(split)
        rows = np.arange(len(stored))
        if shared:
            if SOURCES[self.set].nested:
                with undamaged(self._place(data_dir)):
                    texts = [_text(stored[row], SOURCES[self.set]) for row in rows]
                rows = carve(texts, CARVED)[split]
            else:
                rows = rows[(rows % CARVED == CARVED - 1) == (split == "valid")]
        return name, rows[: self.max_examples]


@functools.lru_cache(maxsize=4)
def _words(dataset: Public, directory: str) -> WordTokenizer:
    source = SOURCES[dataset.set]
    texts = (_text(example, source) for example in dataset._examples("train", directory))
    return WordTokenizer.fit(texts, MIN_COUNT, dataset._setting("words"))


def _pixels(example: dict[str, Any], source: Entry) -> np.ndarray:
    """[T, E] in [0, 1]."""
    (name,) = source.features
    return example[name].reshape(source.shape).astype(np.float32) / 255


def _frames(example: dict[str, Any], source: Entry, frame: int) -> np.ndarray:
    """[T, frame] in [-1, 1], of samples of 16 bits."""
    (name,) = source.features
    samples = example[name].astype(np.float32) / 2**15
    return np.pad(samples, (0, -len(samples) % frame)).reshape(-1, frame)


def _text(example: dict[str, Any], source: Entry) -> str:
    """Stored as bytes; mocked data have str."""
    texts = (example[name] for name in source.features)
    return " ".join(text if isinstance(text, str) else text.decode() for text in texts)


def _builder(name: str, data_dir: str | Path | None) -> "DatasetBuilder":
    """Prepared. Raises OSError where it is not and TensorFlow, which prepares it, is missing."""
    import tensorflow_datasets as tfds

    source = SOURCES[name]
    # TFDS knows most of its sets only once the package with them is imported.
    importlib.import_module(f"tensorflow_datasets.{source.package}")
    directory = Path(data_dir or default_data_dir()).expanduser()
    how = _how(name, str(directory))
    without = importlib.util.find_spec("tensorflow") is None
    if without and source.kind == "audio":
        raise OSError(f"{name} needs TensorFlow even to be read, as all audio of TFDS does: {how}")

    def make(path: Path) -> "DatasetBuilder":
        return tfds.builder(name, data_dir=path)

    builder = opened(make, directory)
    if without and not builder.info.splits:
        raise OSError(
            f"{name} is not prepared in {builder.data_dir}, and TensorFlow, which prepares it, is "
            f"not installed: {how}"
        )
    return prepare(make, directory)


def _how(name: str, directory: str) -> str:
    return (
        f"pip install 'seqmodels[prepare]', then: tfds build {name} --file_format=array_record "
        f"--data_dir={shlex.quote(directory)}"
    )
