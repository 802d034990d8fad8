"""The table of public sets that `public` reads, and the settings of each kind."""

from typing import Any, NamedTuple

# Settings by kind of set, and what they are where they are not given.
SETTINGS: dict[str, dict[str, Any]] = {
    "text": {"tokens": "byte", "words": 20_000, "max_length": None},
    "language": {"tokens": "byte", "words": 20_000},
    "image": {"permuted": False},
    "audio": {"frame": 160},
}


class Entry(NamedTuple):
    """What a public set has and how it is read.

    package   of tensorflow_datasets that knows it
    kind      "text", "image", "audio": a class for each, an image being read pixel by pixel in
              row-major order; "language": texts, of which the next symbol is predicted
    features  that are read; several texts are joined by a space
    shape     of an image: pixels and channels
    splits    official names of train, valid and test; None: carved out of train
    nested    texts of train are parts of others there: what is carved shares none with the rest
    """

    package: str
    kind: str
    features: tuple[str, ...]
    classes: int = 0
    shape: tuple[int, int] = (0, 0)
    splits: tuple[str, str | None, str] = ("train", None, "test")
    nested: bool = False


_OFFICIAL = ("train", "validation", "test")

SOURCES: dict[str, Entry] = {
    "mnist": Entry("image_classification", "image", ("image",), 10, (784, 1)),
    "fashion_mnist": Entry("image_classification", "image", ("image",), 10, (784, 1)),
    "kmnist": Entry("image_classification", "image", ("image",), 10, (784, 1)),
    "cifar10": Entry("image_classification", "image", ("image",), 10, (1024, 3)),
    "imdb_reviews": Entry("text", "text", ("text",), 2),
    # The labels of its official test split are not public: the official valid split is the test.
    # That has whole sentences, and train has sentences and most of their phrases.
    "glue/sst2": Entry(
        "text", "text", ("sentence",), 2, splits=("train", None, "validation"), nested=True
    ),
    "ag_news_subset": Entry("text", "text", ("title", "description"), 4),
    "yelp_polarity_reviews": Entry("text", "text", ("text",), 2),
    "tiny_shakespeare": Entry("text", "language", ("text",), splits=_OFFICIAL),
    "lm1b": Entry("text", "language", ("text",)),
    "speech_commands": Entry("audio", "audio", ("audio",), 12, splits=_OFFICIAL),
}
