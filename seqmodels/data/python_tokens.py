"""Labelling Python source byte by byte: is this byte part of a name, a string, a comment ...?

The text is the running interpreter's own standard library, so nothing is downloaded. Most kinds
can be told from a few bytes; whether one stands inside a string is decided by a quote that may
lie hundreds of bytes back. Files are split whole, yet relatives remain (the character tables in
`encodings/` are much alike), so scores say more about remembering than about new code.
"""

import codecs
import hashlib
import io
import os
import platform
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from seqmodels.data.chance import majority_accuracy, symbol_accuracy
from seqmodels.data.prepare import SPLITS, Feature, check_split, read, stored
from seqmodels.data.rows import Rows, pack
from seqmodels.data.token_kinds import KINDS, label_bytes
from seqmodels.data.tokenizers import ByteTokenizer
from seqmodels.types import RESERVED, Spec

FEATURES: dict[str, Feature] = {
    "bytes": ((None,), np.uint8),
    "kinds": ((None,), np.uint8),
    "path": str,
}

# Tests hold malformed files on purpose; installed packages are not the standard library.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class PythonTokens:
    """Windows of source bytes with a kind for each byte, an index into `token_kinds.KINDS`.

    window      bytes T of a row; a file is cut into consecutive rows, its last one padded. None:
                each file is a row, as a stream needs them
    source_dir  where to look for .py files; None is the running Python's standard library

    The prepared data are named after the Python version and the sources' contents: changed
    sources are prepared anew.
    """

    window: int | None = 256
    source_dir: str | Path | None = None

    spec: ClassVar[Spec] = Spec(
        inputs=ByteTokenizer.size,
        tokens=True,
        outputs=len(KINDS),
        per_step=True,
        loss="cross_entropy",
        metric="accuracy",
    )

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}; allowed: None, or 1 or more bytes")

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """N windows of a split's files: inputs, as of `ByteTokenizer`, and targets int32 [P], one a
        byte.

        Raises ValueError for an unknown split, or for sources that leave a split empty; OSError
        if `data_dir` cannot be written.
        """
        examples = self._read(split, data_dir)
        contents, starts, lengths = pack([example["bytes"] for example in examples])
        targets = np.concatenate([example["kinds"] for example in examples]).astype(np.int32)
        windows = [self._windows(int(n)) for n in lengths]  # of each file, from its start
        return Rows(
            inputs=contents + np.int32(RESERVED),
            targets=targets,
            starts=np.repeat(starts, [len(w) for w in windows]) + np.concatenate(windows),
            lengths=np.concatenate(
                [np.minimum(self.window or n, n - w) for n, w in zip(lengths, windows, strict=True)]
            ),
        )

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """The file of each window, a path below the source directory, str [N]."""
        examples = self._read(split, data_dir)
        counts = [len(self._windows(len(example["bytes"]))) for example in examples]
        return np.repeat([example["path"].decode() for example in examples], counts)

    def chance(self, train: Rows, scored: Rows) -> float:
        """Accuracy, over bytes, of the best answer for all alike, in [0, 1]."""
        return majority_accuracy(scored)

    def baselines(self, train: Rows, scored: Rows) -> dict[str, float]:
        """Accuracy of each byte's commonest kind in training: what needs no memory."""
        return {"each_byte_alone": symbol_accuracy(train, scored)}

    def _windows(self, size: int) -> np.ndarray:
        """Where the windows of a file of `size` bytes start."""
        return np.arange(0, size, self.window or max(size, 1), dtype=np.int32)

    def _read(self, split: str, data_dir: str | Path | None) -> list[dict[str, Any]]:
        check_split(split)
        root = Path(self.source_dir or sysconfig.get_path("stdlib")).expanduser().resolve()

        def splits() -> dict[str, Iterator[dict[str, Any]]]:
            return {split: _examples(root, split) for split in SPLITS}

        return read(
            stored("python_tokens", "1.0.0", FEATURES, splits, data_dir, config=_fingerprint(root)),
            split,
        )


def split_of(path: str) -> str:
    """The split of a file: about 80/10/10, by its path alone, so other files never move it."""
    bucket = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") % 10
    return {8: "valid", 9: "test"}.get(bucket, "train")


def source_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Relative path and contents of each Python file below `root`, sorted, without tests."""
    for directory, below, names in os.walk(root):
        below[:] = sorted(set(below) - _LEFT_OUT)  # in place: os.walk descends into these
        for name in sorted(names):
            if name.endswith(".py"):
                path = Path(directory, name)
                yield path.relative_to(root).as_posix(), path.read_bytes()


def utf8_source(contents: bytes) -> bytes:
    """A file's source as UTF-8 without byte order mark.

    Raises ValueError if the file declares or holds any other encoding.
    """
    source = contents.removeprefix(codecs.BOM_UTF8)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
    except (SyntaxError, LookupError) as error:  # no such encoding, or none of text
        raise ValueError(str(error)) from error
    if text.encode() != source:  # plain ASCII passes under any name
        raise ValueError(f"encoding is {encoding}; allowed: utf-8")
    return source


def _fingerprint(root: Path) -> str:
    """Names what the prepared data depend on: the tokenizer's version and the sources."""
    digest = hashlib.sha256()
    for path, contents in source_files(root):
        digest.update(f"{path}\0{len(contents)}\0".encode() + contents)
    return f"{sys.implementation.name}-{platform.python_version()}-{digest.hexdigest()[:12]}"


def _examples(root: Path, split: str) -> Iterator[dict[str, Any]]:
    """The labelled files of a split, in the order of their paths."""
    total = 0  # bytes
    for path, contents in source_files(root):
        if split_of(path) != split:
            continue
        try:
            source = utf8_source(contents)
            kinds = label_bytes(source)
        except ValueError:
            continue  # a template, or another encoding: nothing to label
        total += len(source)
        yield {
            "bytes": np.frombuffer(source, np.uint8),
            "kinds": np.frombuffer(kinds, np.uint8),
            "path": path,
        }
    if not total:
        raise ValueError(f"no usable Python file below {root} for split {split!r}")
