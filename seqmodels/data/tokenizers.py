"""Text to ids and back: bytes, characters or words.

Three ids mean the same in every vocabulary, and no text ever gets two of them:

    0  PAD      padding
    1  UNKNOWN  a symbol that the training texts did not have
    2  BORDER   before and after a document: its start and its end at once

Symbols have the ids from RESERVED on; byte b has id b + 3. A vocabulary is made by `fit` from
training texts alone. All three tokenizers are hashable, equal where they do the same, and have

    size                 number of ids, the reserved ones included
    borders              whether documents have a BORDER before and after them
    encode(text)         ids int32 [T]; none is PAD or BORDER
    decode(ids)          text, without borders and padding; an unknown symbol is U+FFFD. Raises
                         ValueError for an id that is not in 0..size-1
    decode_stream(ids)   pieces of `decode(ids)` while ids come in, each once it is whole
    to_json()            what `load_tokenizer` reads: a run saves it beside its results
"""

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from seqmodels.data.rows import Rows
from seqmodels.types import BORDER, PAD, RESERVED, UNKNOWN, Array

_REPLACEMENT = "\ufffd"
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class ByteTokenizer:
    """The bytes of UTF-8: 259 ids, nothing to fit, nothing unknown.

    borders  False: of a stream in which documents follow each other without a BORDER, so that no
             model has learnt what it means
    """

    borders: bool = True

    kind: ClassVar[str] = "byte"
    size: ClassVar[int] = RESERVED + 256

    def encode(self, text: str | bytes) -> Int[np.ndarray, "T"]:
        """One id for each byte. Raises ValueError for a lone surrogate, which UTF-8 has not."""
        source = text.encode() if isinstance(text, str) else text
        return np.frombuffer(source, np.uint8) + np.int32(RESERVED)

    def decode(self, ids: Int[Array, "T"]) -> str:
        """The text; bytes that are no UTF-8 become U+FFFD, since a model may write any."""
        return self._bytes(ids).decode(errors="replace")

    def decode_stream(self, ids: Iterable[Any]) -> Iterator[str]:
        """Characters of several bytes come out when their last byte is in."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for one in ids:
            if piece := decoder.decode(self._bytes(np.array([one]))):
                yield piece
        if piece := decoder.decode(b"", final=True):
            yield piece

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "borders": self.borders}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "ByteTokenizer":
        return cls(saved.get("borders", True))  # older ones did not say

    def _bytes(self, ids: Array) -> bytes:
        ids = _shown(ids, self.size)
        # The byte 0xFF never occurs in UTF-8, so UNKNOWN too becomes one U+FFFD.
        return np.where(ids == UNKNOWN, 0xFF, ids - RESERVED).astype(np.uint8).tobytes()


@dataclass(frozen=True)
class CharTokenizer:
    """Unicode code points. `symbols` are sorted; symbol i has id i + 3."""

    symbols: str

    kind: ClassVar[str] = "char"
    borders: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_unique("symbols", self.symbols)
        if list(self.symbols) != sorted(self.symbols):
            raise ValueError("symbols are not sorted by code point")

    @classmethod
    def fit(cls, texts: Iterable[str]) -> "CharTokenizer":
        """All characters of the texts, sorted by code point."""
        return cls("".join(sorted(set().union(*texts))))

    @property
    def size(self) -> int:
        return RESERVED + len(self.symbols)

    def encode(self, text: str) -> Int[np.ndarray, "T"]:
        """One id for each character."""
        return _look_up(_code_points(text), self._points[RESERVED:])

    def decode(self, ids: Int[Array, "T"]) -> str:
        return _text(self._points[_shown(ids, self.size)])

    def decode_stream(self, ids: Iterable[Any]) -> Iterator[str]:
        return filter(None, (self.decode(np.array([one])) for one in ids))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "symbols": self.symbols}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "CharTokenizer":
        return cls(saved["symbols"])

    @cached_property
    def _points(self) -> np.ndarray:
        """Of each id; those of PAD and BORDER are never shown."""
        return _code_points("\0" + _REPLACEMENT + "\0" + self.symbols)


@dataclass(frozen=True)
class WordTokenizer:
    """Lower-cased words, and single marks of punctuation. `words[i]` has id i + 3."""

    words: tuple[str, ...]

    kind: ClassVar[str] = "word"
    borders: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_unique("words", self.words)
        for word in self.words:
            if split_words(word) != [word]:
                raise ValueError(f"words has {word!r}, which is not one lower-cased word")

    @classmethod
    def fit(
        cls, texts: Iterable[str], min_count: int = 1, most: int | None = None
    ) -> "WordTokenizer":
        """Words that occur `min_count` times or more, the commonest first, equals by spelling.

        most: how many of them are kept; None: all.
        """
        counts = Counter(word for text in texts for word in split_words(text))
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls(tuple(sorted(kept, key=lambda word: (-counts[word], word))[:most]))

    @property
    def size(self) -> int:
        return RESERVED + len(self.words)

    def encode(self, text: str) -> Int[np.ndarray, "T"]:
        """One id for each word or mark, as `split_words` finds them."""
        ids = self._ids
        return np.array([ids.get(word, UNKNOWN) for word in split_words(text)], np.int32)

    def decode(self, ids: Int[Array, "T"]) -> str:
        """The words with one space between them: lower-cased, and other spacing is lost."""
        return " ".join(
            _REPLACEMENT if one == UNKNOWN else self.words[one - RESERVED]
            for one in _shown(ids, self.size)
        )

    def decode_stream(self, ids: Iterable[Any]) -> Iterator[str]:
        """Each word but the first with the space before it."""
        words = filter(None, (self.decode(np.array([one])) for one in ids))
        return (f" {word}" if n else word for n, word in enumerate(words))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "words": list(self.words)}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "WordTokenizer":
        return cls(tuple(saved["words"]))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: RESERVED + n for n, word in enumerate(self.words)}


Tokenizer = ByteTokenizer | CharTokenizer | WordTokenizer

_KINDS: dict[str, type[Tokenizer]] = {
    cls.kind: cls for cls in (ByteTokenizer, CharTokenizer, WordTokenizer)
}


def load_tokenizer(saved: dict[str, Any]) -> Tokenizer:
    """The tokenizer whose `to_json` gave `saved`. Raises ValueError where it is none."""
    kind = saved.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"tokenizer kind is {kind!r}; allowed: {', '.join(_KINDS)}")
    try:
        return _KINDS[kind].from_json(saved)
    except KeyError as error:
        raise ValueError(f"saved tokenizer of kind {kind!r} has no field {error}") from error


def split_words(text: str) -> list[str]:
    """Lower-cased runs of letters, digits and underscores, and every other visible symbol alone."""
    return _WORD.findall(text.lower())


def bordered(documents: list[Int[np.ndarray, "_"]], starts: bool = True, ends: bool = True) -> Rows:
    """Documents of ids as rows for a language model: BORDER, document, BORDER, document, BORDER.

    One border ends a document and starts the next, so rows overlap in it. `starts` and `ends` are
    False where the first document is cut at its start, or the last one at its end: no border.
    """
    border = np.array([BORDER], np.int32)
    parts = [part for document in documents for part in (document, border)]
    parts = [border][: int(starts)] + (parts if ends else parts[:-1])
    lengths = np.array([len(document) for document in documents], np.int32)
    firsts = np.cumsum(lengths + 1) - lengths - 1  # of rows with a border before them ...
    if not starts:  # ... which the first has not
        firsts = np.maximum(firsts - 1, 0)
    stops = np.append(firsts[1:] + 1, sum(map(len, parts)))
    return Rows(
        np.concatenate(parts), None, firsts.astype(np.int32), (stops - firsts).astype(np.int32)
    )


def target_counts(rows: Rows, size: int) -> Int[np.ndarray, "V"]:
    """How often each id is the target, in `bordered` rows of ids below `size`."""
    return np.bincount(rows.inputs[1:], minlength=size)  # the first is the next one of none


def unigram_bits(train: Int[np.ndarray, "V"], test: Int[np.ndarray, "V"]) -> float:
    """Bits per target on `test` of a model that knows only how often symbols are in `train`.

    Both are counts by id. Every id but PAD, which is no target, is counted once more than it
    occurs, so that what training did not have costs finitely many bits: Laplace's rule.
    """
    counts = train[UNKNOWN:].astype(np.float64) + 1
    bits = -np.log2(counts / counts.sum())
    return float(np.average(bits, weights=test[UNKNOWN:]))


def _shown(ids: Array, size: int) -> np.ndarray:
    """Ids without padding and borders. Raises ValueError for one outside 0..size-1."""
    ids = np.asarray(ids)
    outside = (ids < 0) | (ids >= size)
    if outside.any():
        raise ValueError(f"id {ids[outside][0]} is not in the vocabulary; allowed: 0..{size - 1}")
    return ids[(ids != PAD) & (ids != BORDER)]


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _text(points: np.ndarray) -> str:
    return points.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _look_up(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Position in the sorted table plus RESERVED, UNKNOWN where it is not there: int32."""
    at = np.searchsorted(table, values)
    found = np.append(table, 0)[at] == values
    found &= at < len(table)
    return np.where(found, at + RESERVED, UNKNOWN).astype(np.int32)


def _check_unique(field: str, symbols: str | tuple[str, ...]) -> None:
    for symbol, count in Counter(symbols).most_common(1):
        if count > 1:
            raise ValueError(f"{field} has {symbol!r} {count} times; allowed: once")
