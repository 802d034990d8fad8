"""The help texts of the running Python, character by character: a language model's data set.

`pydoc_data.topics` comes with every CPython, so nothing is downloaded: some 80 topics, about half
a million characters. Many are sections of others ("typesseq-mutable" of "typesseq"), so that a
split by topics alone tests on text it has trained on: 8 % of the test part, with Python 3.11.
`distinct` leaves those out, and some 60 topics and four fifths of the characters remain. The texts
change with the Python version, and so do scores.
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

from seqmodels.data.prepare import SPLITS, Feature, check_split, read, stored
from seqmodels.data.rows import Rows
from seqmodels.data.splits import ranges
from seqmodels.data.tokenizers import CharTokenizer, bordered, target_counts, unigram_bits
from seqmodels.types import Spec

SHARES = dict(zip(SPLITS, (0.85, 0.05, 0.1), strict=True))  # of all characters
RUN = 200  # characters that no two topics share
FEATURES: dict[str, Feature] = {"topic": str, "first": np.int64, "text": str, "ends": np.bool_}


class Piece(NamedTuple):
    """What a split has of a topic: its characters `first`..`first + len(text) - 1`."""

    topic: str
    first: int
    text: str
    ends: bool  # with the topic's last character


@dataclass(frozen=True)
class PydocTopics:
    """Topics, sorted by name: predict the next character, or the border after the last.

    repeats  False: distinct topics. No two have `RUN` characters running in common, and so no two
             splits have, as long as a topic that is cut does not repeat itself. True: all topics as
             they come, for comparing with figures that were measured so

    A split's tokens are one array: border, topic, border, topic, border ... One border ends a
    topic and starts the next, so rows overlap in it: read as a stream, there is a reset where a
    border is the input. Of the characters of these topics train has the first 85 %, valid the next
    5 % and test the last 10 %; a topic that is cut goes on in the next split without a border.

    The prepared data are named after the Python version and the contents.
    """

    repeats: bool = False

    @property
    def spec(self) -> Spec:
        """Sizes follow from the training part of the running Python's topics."""
        return _spec(self.repeats, _fingerprint(_topics(self.repeats)))

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
        topics = _topics(self.repeats)

        def splits() -> dict[str, list[dict[str, Any]]]:
            return {split: [piece._asdict() for piece in cut(topics, split)] for split in SPLITS}

        builder = stored(
            "pydoc_topics",
            "2.0.0",
            FEATURES,
            splits,
            data_dir,
            config=_fingerprint(topics),
        )
        return [
            Piece(
                topic=example["topic"].decode(),
                first=example["first"],
                text=example["text"].decode(),
                ends=example["ends"],
            )
            for example in read(builder, split)
        ]


def cut(topics: dict[str, str], split: str) -> Iterator[Piece]:
    """A split's pieces, in the order of the topics' names; none is empty."""
    begin, end = ranges(sum(map(len, topics.values())), SHARES)[split]
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


def _topics(repeats: bool) -> dict[str, str]:
    from pydoc_data import topics

    return topics.topics if repeats else _distinct(tuple(sorted(topics.topics.items())))


@functools.lru_cache(maxsize=1)
def _distinct(topics: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Remembered, since it takes most of a second."""
    return distinct(dict(topics))


def _fingerprint(topics: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for topic, text in sorted(topics.items()):
        digest.update(f"{topic}\0{len(text)}\0{text}".encode())
    return f"{sys.implementation.name}-{platform.python_version()}-{digest.hexdigest()[:12]}"


@functools.lru_cache(maxsize=2)
def _spec(repeats: bool, fingerprint: str) -> Spec:
    """`fingerprint` of the topics of which the answer is remembered."""
    size = CharTokenizer.fit(piece.text for piece in cut(_topics(repeats), "train")).size
    return Spec(
        inputs=size, tokens=True, outputs=size, per_step=True, loss="cross_entropy", metric="bits"
    )
