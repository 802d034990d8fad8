"""Is a sentence of a film review for or against the film? Words as ids, one label a sentence.

10,568 snippets from Rotten Tomatoes, 2 to 74 words and marks (Pang and Lee 2005), each
rated from -4 to 4 by twenty readers (Hutto and Gilbert 2014, "VADER: a parsimonious rule-based
model for sentiment analysis of social media text"). The label is whether the mean rating is
positive; 37 snippets rated 0 are left out. Please cite both papers where you use the data.

The snippets are numbered from 1 on, and nothing tells which are from one review. What can be told
is kept on one side of the split: snippets of the same words.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int

from seqmodels.data.chance import majority_accuracy, naive_bayes_accuracy
from seqmodels.data.manual import check_sha256, extract, manual_dir, manual_file, text_lines
from seqmodels.data.prepare import SPLITS, Feature, check_split, read, stored
from seqmodels.data.rows import Rows, pack
from seqmodels.data.splits import by_entity
from seqmodels.data.tokenizers import WordTokenizer, split_words
from seqmodels.types import Array, Spec

FILE = "movieReviewSnippets_GroundTruth.txt"
SHA256 = "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350"
SOURCE = (
    "pip download --no-deps --no-binary vaderSentiment vaderSentiment==3.3.2 "
    "(the .tar.gz will do as it is)"
)
SHARES = dict(zip(SPLITS, (0.8, 0.1, 0.1), strict=True))
MIN_COUNT = 2
FEATURES: dict[str, Feature] = {
    "words": ((None,), np.int32),
    "positive": np.uint8,
    "id": np.int64,
}
VOCABULARY = 8756  # the 3 reserved ids, and words the training part has MIN_COUNT times or more


class Snippet(NamedTuple):
    number: int
    rating: float
    text: str


@dataclass(frozen=True)
class MovieReviews:
    """Word ids of one snippet a row, class 1 if it is for the film, 0 if against.

    Lower-cased words and marks of punctuation as `WordTokenizer` finds them: 0 is padding, 1 a
    word that the training part has less than twice, 2 unused; words have ids from 3 on, the
    commonest first. Split 80/10/10 by a hash of the words.
    """

    spec: ClassVar[Spec] = Spec(
        inputs=VOCABULARY,
        tokens=True,
        outputs=2,
        per_step=False,
        loss="cross_entropy",
        metric="accuracy",
    )

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """N snippets: inputs int32 [P], targets int32 [N], 0 or 1.

        Raises ValueError for an unknown split or a file that is not the right one, OSError if it
        is missing or `data_dir` cannot be written.
        """
        examples = self._read(split, data_dir)
        inputs, starts, lengths = pack([example["words"] for example in examples])
        targets = np.array([example["positive"] for example in examples], np.int32)
        return Rows(inputs=inputs, targets=targets, starts=starts, lengths=lengths)

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """The number of each snippet in the file, int64 [N]."""
        return np.array([example["id"] for example in self._read(split, data_dir)], np.int64)

    def chance(self, train: Rows, scored: Rows) -> float:
        """Accuracy of the best answer for all rows alike, in [0, 1]."""
        return majority_accuracy(scored)

    def baselines(self, train: Rows, scored: Rows) -> dict[str, float]:
        """Accuracy of naive Bayes on words and pairs of neighbours, which knows no order."""
        return {"naive_bayes": naive_bayes_accuracy(train, scored, VOCABULARY)}

    def tokenizer(self, data_dir: str | Path | None = None) -> WordTokenizer:
        """The vocabulary, made of the training part alone."""
        return WordTokenizer(tuple(self._builder(data_dir).info.metadata["words"]))

    def decode(self, ids: Int[Array, "T"], data_dir: str | Path | None = None) -> str:
        """The words of a row, to be read; U+FFFD stands for an unknown one."""
        return self.tokenizer(data_dir).decode(ids)

    def _read(self, split: str, data_dir: str | Path | None) -> list[dict[str, Any]]:
        check_split(split)
        return read(self._builder(data_dir), split)

    def _builder(self, data_dir: str | Path | None) -> Any:
        manual = manual_dir(data_dir)
        kept: dict[str, Any] = {}

        def splits() -> dict[str, Iterator[dict[str, Any]]]:
            snippets = _snippets(manual)
            tokenizer = WordTokenizer.fit((one.text for one in snippets["train"]), MIN_COUNT)
            if tokenizer.size > VOCABULARY:
                raise ValueError(f"the vocabulary has {tokenizer.size} ids, at most {VOCABULARY}")
            kept["words"] = tokenizer.words
            return {split: _examples(here, tokenizer) for split, here in snippets.items()}

        return stored("movie_reviews", "1.0.0", FEATURES, splits, data_dir, metadata=kept)


def parse_snippets(contents: bytes, where: str) -> list[Snippet]:
    """The lines of the file: number, mean rating and text between tabs.

    Raises ValueError, as "where:line: ...", if a line is anything else.
    """
    snippets = []
    for number, line in enumerate(text_lines(contents, where), 1):
        place, fields = f"{where}:{number}", line.split("\t")
        if len(fields) != 3:
            raise ValueError(f"{place}: {len(fields)} fields between tabs, expected 3")
        if fields[0] != str(number):
            raise ValueError(f"{place}: snippet number {fields[0][:20]!r}, expected {number}")
        try:
            rating = float(fields[1])
        except ValueError:
            rating = math.nan
        if not -4 <= rating <= 4:
            raise ValueError(f"{place}: rating {fields[1][:20]!r}, allowed: -4 to 4")
        if not split_words(fields[2]):
            raise ValueError(f"{place}: the text has no words")
        snippets.append(Snippet(number, rating, fields[2]))
    return snippets


def _contents(manual: Path) -> tuple[bytes, str]:
    """The text file, taken out of the archives it is in, and where it was found."""
    path = manual_file((FILE, "vaderSentiment-*.tar.gz"), SOURCE, manual)
    contents, where = path.read_bytes(), str(path)
    if path.name != FILE:
        for name in ("hutto_ICWSM_2014.tar.gz", FILE):
            contents, where = extract(contents, where, [name])[0], f"{where}/{name}"
    return contents, where


def _snippets(manual: Path) -> dict[str, list[Snippet]]:
    """The snippets of each split, in the order of the file."""
    contents, where = _contents(manual)
    snippets = parse_snippets(contents, where)
    check_sha256(contents, where, SHA256, SOURCE)
    rated = [snippet for snippet in snippets if snippet.rating]
    same = np.array([" ".join(split_words(snippet.text)) for snippet in rated])
    parts = by_entity(same, SHARES)
    return {split: [rated[row] for row in rows] for split, rows in parts.items()}


def _examples(snippets: list[Snippet], tokenizer: WordTokenizer) -> Iterator[dict[str, Any]]:
    for number, rating, text in snippets:
        yield {"words": tokenizer.encode(text), "positive": rating > 0, "id": number}
