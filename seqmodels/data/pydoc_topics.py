"""The help texts of the running Python, character by character: a language model's data set.

`pydoc_data.topics` comes with every CPython, so nothing is downloaded: some 80 topics, about half
a million characters. Many are sections of others ("typesseq-mutable" of "typesseq"), so that a
split by topics alone would test on text it has trained on; `distinct` leaves those out, and some
60 topics and four fifths of the characters remain. The texts change with the Python version, and
so do scores.
"""

import functools
import hashlib
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seqmodels.data.prepare import SPLITS, check_split, prepare, read
from seqmodels.data.rows import Rows
from seqmodels.data.tokenizers import CharTokenizer, bordered, target_counts, unigram_bits
from seqmodels.types import Spec

# Of all characters: train ends before the first share, valid before the second. In hundredths.
TRAIN_END, VALID_END = 85, 90
RUN = 200  # characters that no two topics share


class Piece(NamedTuple):
    """What a split has of a topic: its characters `first`..`first + len(text) - 1`."""

    topic: str
    first: int
    text: str
    ends: bool  # with the topic's last character


@dataclass(frozen=True)
class PydocTopics:
    """Distinct topics, sorted by name: predict the next character, or the border after the last.

    A split's tokens are one array: border, topic, border, topic, border ... One border ends a
    topic and starts the next, so rows overlap in it: read as a stream, there is a reset where a
    border is the input. Of the characters of these topics train has the first 85 %, valid the next
    5 % and test the last 10 %; a topic that is cut goes on in the next split without a border. No
    two topics, and so no two splits, have `RUN` characters running in common.

    The prepared data are named after the Python version and the contents.
    """

    @property
    def spec(self) -> Spec:
        """Sizes follow from the training part of the running Python's topics."""
        return _spec(_fingerprint(_topics()))

    def tokenizer(self, data_dir: str | Path | None = None) -> CharTokenizer:
        """The characters of the training part; others become unknown in valid and test."""
        return CharTokenizer.fit(piece.text for piece in self._read("train", data_dir))

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """One row a topic or part of one: ids int32 [P], the target is the next id.

        Raises ValueError for an unknown split, OSError if `data_dir` cannot be written.
        """
        check_split(split)
        pieces, tokenizer = self._read(split, data_dir), self.tokenizer(data_dir)
        return bordered(
            [tokenizer.encode(piece.text) for piece in pieces],
            starts=pieces[0].first == 0,
            ends=pieces[-1].ends,
        )

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """Topic and first and last character of each row, as "name[first:stop]", str [N]."""
        pieces = self._read(split, data_dir)
        return np.array([f"{p.topic}[{p.first}:{p.first + len(p.text)}]" for p in pieces])

    def chance(self, train: Rows, scored: Rows) -> float:
        """Bits per target from the frequencies in train, each symbol counted once more."""
        return unigram_bits(*(target_counts(rows, self.spec.outputs) for rows in (train, scored)))

    def _read(self, split: str, data_dir: str | Path | None) -> list[Piece]:
        check_split(split)
        builder = _builder_class(_fingerprint(_topics()))
        examples = read(
            prepare(lambda path: builder(data_dir=path, file_format="array_record"), data_dir),
            split,
        )
        return [
            Piece(
                topic=example["topic"].decode(),
                first=example["first"],
                text=example["text"].decode(),
                ends=example["ends"],
            )
            for example in examples
        ]


def cut(topics: dict[str, str], split: str) -> Iterator[Piece]:
    """A split's pieces, in the order of the topics' names; none is empty."""
    total = sum(map(len, topics.values()))
    bounds = (0, total * TRAIN_END // 100, total * VALID_END // 100, total)
    begin, end = bounds[SPLITS.index(split) :][:2]
    position = 0  # of a topic's first character in all texts
    for topic, text in sorted(topics.items()):
        first, stop = (min(max(bound - position, 0), len(text)) for bound in (begin, end))
        if first < stop:
            yield Piece(topic, first, text[first:stop], ends=stop == len(text))
        position += len(text)


def distinct(topics: dict[str, str], run: int = RUN) -> dict[str, str]:
    """The topics that share no `run` characters in a row with a longer one that is kept.

    Of equally long ones the first by name comes first. What remains has no such passage twice,
    unless within one topic.
    """
    kept, seen = {}, set[str]()
    for topic, text in sorted(topics.items(), key=lambda one: (-len(one[1]), one[0])):
        here = {text[first : first + run] for first in range(len(text) - run + 1)}
        if seen.isdisjoint(here):
            kept[topic] = text
            seen |= here
    return kept


def _topics() -> dict[str, str]:
    from pydoc_data import topics

    return _distinct(tuple(sorted(topics.topics.items())))


@functools.lru_cache(maxsize=1)
def _distinct(topics: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Remembered, since it takes most of a second."""
    return distinct(dict(topics))


def _fingerprint(topics: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for topic, text in sorted(topics.items()):
        digest.update(f"{topic}\0{len(text)}\0{text}".encode())
    return f"{sys.implementation.name}-{platform.python_version()}-{digest.hexdigest()[:12]}"


@functools.lru_cache(maxsize=1)
def _spec(fingerprint: str) -> Spec:
    """`fingerprint` of the topics of which the answer is remembered."""
    size = CharTokenizer.fit(piece.text for piece in cut(_topics(), "train")).size
    return Spec(
        inputs=size, tokens=True, outputs=size, per_step=True, loss="cross_entropy", metric="bits"
    )


@functools.cache
def _builder_class(fingerprint: str) -> type:
    import tensorflow_datasets as tfds

    class PydocTopicsBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        name = "pydoc_topics"
        VERSION = tfds.core.Version("2.0.0")  # 1.0.0 had all topics
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=fingerprint)]

        def _info(self) -> tfds.core.DatasetInfo:
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(
                    {
                        "topic": tfds.features.Text(),
                        "first": tfds.features.Scalar(np.int64),
                        "text": tfds.features.Text(),
                        "ends": tfds.features.Scalar(np.bool_),
                    }
                ),
                disable_shuffling=True,  # stored in the order of the keys
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
            return {split: self._generate_examples(split) for split in SPLITS}

        def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
            for key, piece in enumerate(cut(_topics(), split)):
                yield key, piece._asdict()

    return PydocTopicsBuilder
