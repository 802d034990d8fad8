"""Who is speaking? Japanese vowels as sequences of 12 numbers, 7 to 29 steps long.

Nine men said the vowels /ae/ many times; a step is one frame of the utterance, as 12 coefficients
of linear prediction (Kudo, Toyama and Shimbo 1999, "Multidimensional curve classification using
passing-through regions"). 270 utterances are for training, 30 of each man; 370 are for testing,
24 to 88 of each. All nine speak in every split: the task is to know them again.

The two files are in the packages aeon and sktime (both BSD-3), which are not imported.
"""

import importlib.util
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from seqmodels.data.chance import majority_accuracy
from seqmodels.data.manual import check_sha256, extract, manual_dir, manual_file, text_lines
from seqmodels.data.prepare import SPLITS, Feature, check_split, read, stored
from seqmodels.data.rows import Rows, pack
from seqmodels.types import Spec

DIMENSIONS = 12
SPEAKERS = tuple("123456789")  # the labels in the files; class c is SPEAKERS[c]

FILES = {
    "TRAIN": "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
    "TEST": "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
}
"""The SHA-256 of each file."""

SOURCE = "pip download --no-deps aeon==1.6.0 (the wheel will do as it is), or pip install aeon"
VALID_EVERY = 5
FEATURES: dict[str, Feature] = {
    "series": ((None, DIMENSIONS), np.float32),
    "speaker": np.uint8,
    "id": str,
}


@dataclass(frozen=True)
class JapaneseVowels:
    """Twelve numbers a step, E = 12, T = 7 to 29, one of nine speakers a row.

    "test" is the official test file. Every fifth utterance of each speaker in the training file
    is "valid" (6 of 30, so 54 in all), the other 216 are "train". The numbers are as in the files,
    not normalised; they lie between about -2 and 2.
    """

    spec: ClassVar[Spec] = Spec(
        inputs=DIMENSIONS,
        tokens=False,
        outputs=len(SPEAKERS),
        per_step=False,
        loss="cross_entropy",
        metric="accuracy",
    )

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """N utterances: inputs float32 [P, 12], targets int32 [N].

        Raises ValueError for an unknown split or files that are not the right ones, OSError if
        they are missing or `data_dir` cannot be written.
        """
        examples = self._read(split, data_dir)
        inputs, starts, lengths = pack([example["series"] for example in examples])
        targets = np.array([example["speaker"] for example in examples], np.int32)
        return Rows(inputs=inputs, targets=targets, starts=starts, lengths=lengths)

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """File and line of each row, as "JapaneseVowels_TRAIN.ts:16", str [N]."""
        return np.array([example["id"].decode() for example in self._read(split, data_dir)])

    def chance(self, train: Rows, scored: Rows) -> float:
        """Accuracy of the best answer for all rows alike, in [0, 1].

        88 / 370 on test, though training has all speakers equally often: blind guesses score 1/9.
        """
        return majority_accuracy(scored)

    def _read(self, split: str, data_dir: str | Path | None) -> list[dict[str, Any]]:
        check_split(split)
        manual = manual_dir(data_dir)

        def splits() -> dict[str, Iterator[dict[str, Any]]]:
            return {split: _examples(split, manual) for split in SPLITS}

        return read(stored("japanese_vowels", "1.0.0", FEATURES, splits, data_dir), split)


def parse_ts(contents: bytes, where: str) -> list[tuple[int, Float[np.ndarray, "T E"], int]]:
    """Line number, series and class of each case in a `.ts` file of `DIMENSIONS` dimensions.

    After the line `@data` each line is one case: the dimensions between colons, each its values
    between commas, and the label at the end.

    Raises ValueError, as "where:line: ...", if a line is anything else.
    """
    lines = text_lines(contents, where)
    first = next((n for n, line in enumerate(lines, 1) if line.strip().lower() == "@data"), None)
    if first is None:
        raise ValueError(f"{where}:{len(lines)}: the file ends without a line @data")
    cases = []
    for number, line in enumerate(lines[first:], first + 1):
        *columns, label = line.strip().split(":")
        if len(columns) != DIMENSIONS:
            raise ValueError(
                f"{where}:{number}: {len(columns)} dimensions and a label, expected {DIMENSIONS}"
            )
        if label not in SPEAKERS:
            raise ValueError(
                f"{where}:{number}: label {label[:20]!r}, allowed: {', '.join(SPEAKERS)}"
            )
        series = [_numbers(column, f"{where}:{number}") for column in columns]
        lengths = {len(values) for values in series}
        if len(lengths) > 1:
            raise ValueError(f"{where}:{number}: dimensions of different lengths {sorted(lengths)}")
        cases.append((number, np.array(series, np.float32).T, SPEAKERS.index(label)))
    if not cases:
        raise ValueError(f"{where}:{len(lines)}: the file ends without a line of data")
    return cases


def _numbers(column: str, where: str) -> list[float]:
    values = []
    for text in column.split(","):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):  # `?` is a missing value, of which there are none
            raise ValueError(f"{where}: {text[:20]!r} is not a finite number")
        values.append(value)
    return values


def _file(part: str, manual: Path) -> tuple[bytes, str]:
    """The contents of a part's file, and where they were found."""
    name = f"JapaneseVowels_{part}.ts"
    package = importlib.util.find_spec("aeon")  # finds it without importing it
    installed = [Path(package.origin).parent] if package and package.origin else []
    directories = [directory / "datasets/data/JapaneseVowels" for directory in installed]
    path = manual_file((name, "aeon-*.whl", "sktime-*.whl"), SOURCE, manual, *directories)
    if path.suffix == ".ts":
        return path.read_bytes(), str(path)
    return extract(path.read_bytes(), str(path), [name])[0], f"{path}/{name}"


def _examples(split: str, manual: Path) -> Iterator[dict[str, Any]]:
    """The utterances of a split, in the order of its file."""
    part = "TEST" if split == "test" else "TRAIN"
    contents, where = _file(part, manual)
    cases = parse_ts(contents, where)
    check_sha256(contents, where, FILES[part], SOURCE)
    heard = dict.fromkeys(range(len(SPEAKERS)), 0)  # utterances of each speaker so far
    for number, series, speaker in cases:
        heard[speaker] += 1
        valid = heard[speaker] % VALID_EVERY == 0
        if split == "test" or valid == (split == "valid"):
            row = f"JapaneseVowels_{part}.ts:{number}"
            yield {"series": series, "speaker": speaker, "id": row}
