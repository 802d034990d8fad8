"""Language modelling, byte by byte, of files too large for memory.

Nothing is prepared or copied: a batch maps the few pages of the files that it needs, copies their
bytes and lets go of them, so memory stays at the size of a batch however large the files are.
"""

import codecs
import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8

from seqmodels.data.prepare import SPLITS, check_split
from seqmodels.data.splits import ranges
from seqmodels.data.tokenizers import ByteTokenizer, unigram_bits
from seqmodels.types import PAD, RESERVED, Batch, Spec

SHARES = dict(zip(SPLITS, (0.9, 0.05, 0.05), strict=True))  # of all bytes
SMALLEST = 40  # bytes in all: every split has an input and a target
_BLOCK = 1 << 20  # bytes looked at together where a whole split is read


class File(NamedTuple):
    """A file with bytes in it, as it was when first looked at."""

    path: str
    size: int


@dataclass(frozen=True)
class TextFiles:
    """One stream of bytes over all files, in which each file is a document of its own.

    path       a file, a directory (all files below it, sorted by path, without hidden ones), or a
               glob pattern (sorted as well)
    separator  text that ends a document, such as "\\n\\n": memory is reset at the byte after it,
               as it is at the first byte of each file. Where separators overlap, all count.
    encoding   "utf-8": all files are read through and checked at first use; None: any bytes

    Train has the first 90 % of the bytes, valid the next 5 % and test the last 5 %; documents and
    characters may be cut. The files are looked for at first use; if one has another size later,
    that is an error. Copies sent to other processes know what this one found.
    """

    path: str | Path
    separator: str | None = None
    encoding: str | None = None

    spec: ClassVar[Spec] = Spec(
        inputs=ByteTokenizer.size,
        tokens=True,
        outputs=ByteTokenizer.size,
        per_step=True,
        loss="cross_entropy",
        metric="bits",
    )

    def __post_init__(self) -> None:
        if self.separator == "":
            raise ValueError("separator is ''; allowed: None, or one or more characters")
        if self.encoding not in (None, "utf-8"):
            raise ValueError(f"encoding is {self.encoding!r}; allowed: None, 'utf-8'")

    def tokenizer(self, data_dir: str | Path | None = None) -> ByteTokenizer:
        """That of all files; `data_dir` is without meaning."""
        return ByteTokenizer(borders=False)

    def size(self, split: str) -> int:
        """Bytes of a split. Raises as `files` does, and ValueError for an unknown split."""
        begin, end = self._range(split)
        return end - begin

    @cached_property
    def files(self) -> tuple[File, ...]:
        """The files in their order.

        Raises OSError where there is none or one cannot be read, ValueError where they are too
        small or not in the encoding.
        """
        files = tuple(_found(os.path.expanduser(self.path)))
        total = sum(file.size for file in files)
        if total < SMALLEST:
            raise ValueError(f"{self.path} has {total} bytes; allowed: {SMALLEST} or more")
        if self.encoding == "utf-8":
            for file in files:
                _check_utf8(file)
        return files

    @cached_property
    def _ends(self) -> Int[np.ndarray, "files"]:
        """Of each file in the stream of all, behind its last byte."""
        return np.cumsum([file.size for file in self.files])

    def chunk(self, split: str, index: int, batch: int, steps: int) -> Batch:
        """Chunk `index` of a split, NumPy arrays [batch, steps]: what `rows.chunk` would give.

        The split is laid out in `batch` rows that follow each other, and chunk j holds their
        steps from j * steps on; the target is the next byte, which the last one of a row has not.
        `reset` is set where a document starts, and at the first step of chunk 0. There are
        `rows.chunks(size(split), batch, steps)` chunks; those beyond are all padding.

        Raises as `size` does; ValueError for a negative index, or if a file's size has changed.
        """
        if index < 0:
            raise ValueError(f"chunk {index} does not exist; allowed: 0 or more")
        begin, end = self._range(split)
        separator = np.frombuffer((self.separator or "").encode(), np.uint8)
        row = np.arange(batch)[:, None]
        shortest, longer = divmod(end - begin, batch)
        length = shortest + (row < longer)
        start = begin + row * shortest + np.minimum(row, longer)
        # With the bytes before, which may end a document, and the one after, the last target.
        seen = index * steps + np.arange(-len(separator), steps + 1)[None, :]
        wanted = (seen < length) & (start + seen >= 0)
        values, first = self._read(start + seen, wanted)

        now = slice(len(separator), -1)
        time, at, first = seen[:, now], (start + seen)[:, now], first[:, now]
        mask, scored = time < length, time + 1 < length
        ids = values + np.int32(RESERVED)
        new = at - len(separator) >= first if len(separator) else at < first
        for back, byte in enumerate(separator):
            new = new & (values[:, back : back + steps] == byte)
        return Batch(
            inputs=np.where(mask, ids[:, now], PAD),
            targets=np.where(scored, ids[:, len(separator) + 1 :], PAD),
            mask=mask,
            weights=scored.astype(np.float32),
            reset=mask & (new | (at == first)) | (time == 0),
        )

    def chance(self) -> dict[str, float]:
        """Bits per byte of each split from the frequencies in train; reads all files through."""
        counts = {split: self._counts(split) for split in SPLITS}
        return {split: unigram_bits(counts["train"], here) for split, here in counts.items()}

    def _counts(self, split: str) -> np.ndarray:
        """How often each id is a target: every byte but the first, the next of none."""
        begin, end = self._range(split)
        counts = np.zeros(self.spec.outputs, np.int64)
        before = 0  # bytes of the files before this one
        for file in self.files:
            first, stop = max(begin + 1 - before, 0), min(end - before, file.size)
            for start in range(first, stop, _BLOCK):
                block = _map(file)[start : min(start + _BLOCK, stop)]
                counts[RESERVED:] += np.bincount(block, minlength=256)
            before += file.size
        return counts

    def _read(
        self, at: Int[np.ndarray, "*n"], wanted: Bool[np.ndarray, "*n"]
    ) -> tuple[UInt8[np.ndarray, "*n"], Int[np.ndarray, "*n"]]:
        """The bytes at places in the stream, 0 unless wanted, and where their files start."""
        starts = np.append(0, self._ends)  # the last one of what lies behind all files
        number = np.searchsorted(self._ends, at, side="right")
        values = np.zeros(at.shape, np.uint8)
        for one in np.unique(number[wanted]):
            here = wanted & (number == one)
            values[here] = _map(self.files[one])[at[here] - starts[one]]
        return values, starts[number]

    def _range(self, split: str) -> tuple[int, int]:
        check_split(split)
        return ranges(int(self._ends[-1]), SHARES)[split]


def _map(file: File) -> np.ndarray:
    """Its bytes, to be copied and let go of soon: where a mapped file is cut, reading it kills.

    Raises OSError if the file cannot be read, ValueError if its size has changed.
    """
    now = os.stat(file.path).st_size
    if now != file.size:
        raise ValueError(f"{file.path} has {now} bytes, and had {file.size} when first read")
    return np.memmap(file.path, np.uint8, "r")


def _found(path: str) -> Iterator[File]:
    """Regular files that are not empty, sorted. Raises OSError where there are none."""
    if os.path.isdir(path):
        names = [
            os.path.join(directory, name)
            for directory, below, names in os.walk(path)
            for name in names
            if not any(
                part.startswith(".") for part in Path(directory, name).relative_to(path).parts
            )
        ]
    elif os.path.lexists(path):
        names = [path]
    else:
        names = [name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)]
    if not names:
        raise FileNotFoundError(f"no file at {path}; allowed: a file, a directory, a glob pattern")
    for name in sorted(names):
        if os.path.exists(name) and not os.path.isfile(name):
            raise OSError(f"{name} is not a regular file")
        if size := os.stat(name).st_size:
            yield File(name, size)


def _check_utf8(file: File) -> None:
    """Raises ValueError with the position of the first byte that is not part of a character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, file.size, _BLOCK):
        kept, _ = decoder.getstate()  # the first bytes of a character cut by the block before
        block = _map(file)[begin : begin + _BLOCK].tobytes()
        try:
            decoder.decode(block, final=begin + _BLOCK >= file.size)
        except UnicodeDecodeError as error:
            position = begin - len(kept) + error.start
            raise ValueError(
                f"{file.path} is not utf-8 at byte {position}: {error.reason}"
            ) from error
