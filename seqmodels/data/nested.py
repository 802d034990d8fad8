"""Texts that stand in one another: sentences and their phrases, kept on one side of a split."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from seqmodels.data.splits import Parts

Words = tuple[str, ...]


def carve(texts: Sequence[str], every: int) -> Parts:
    """Rows of "train" and "valid" of which no text is equal to, or part of, one of the other.

    Texts count by their words, those between spaces. "valid" is every `every`-th text that is part
    of no other one, such as a whole sentence among its phrases; "train" has all rows but these and
    their parts. The parts of valid texts are in neither.
    """
    rows: dict[Words, list[int]] = {}
    for row, text in enumerate(texts):
        rows.setdefault(tuple(text.split()), []).append(row)
    inside: set[Words] = set()
    for words in sorted(rows, key=len, reverse=True):
        if words not in inside:  # the parts of one that is are known
            inside.update(part for part in parts(words) if part in rows)
    valid = [words for words in rows if words not in inside][every - 1 :: every]
    out = set(valid).union(*map(parts, valid))
    return {
        "train": _sorted(row for words in rows if words not in out for row in rows[words]),
        "valid": _sorted(row for words in valid for row in rows[words]),
    }


def parts(words: Words) -> Iterator[Words]:
    """All runs of words in a text but the text itself."""
    for size in range(len(words)):
        for first in range(len(words) - size + 1):
            yield words[first : first + size]


def _sorted(rows: Iterator[int]) -> Int[np.ndarray, "n"]:
    return np.array(sorted(rows), np.int64)
