"""Public data sets of TFDS, by name: text classes, pixels of images, text as a language model.

    python -m experiments.train --config=configs/public.py:imdb_reviews

The argument is a name of `seqmodels/data/public.py`. Sets whose preparation needs TensorFlow say
how to prepare them once; after that they are read without it.
"""

from ml_collections import ConfigDict

from configs import base

LANGUAGE = ("tiny_shakespeare", "lm1b")  # the next byte of one stream
TEXTS = ("imdb_reviews", "glue/sst2", "ag_news_subset", "yelp_polarity_reviews")  # bytes to a class


def get_config(name: str = "imdb_reviews") -> ConfigDict:
    config = base.get_config("gru")
    base.set_task(config, "public", set=name)
    if name in LANGUAGE:
        config.model.readout = None
        config.train.chunk = 64
    if name in LANGUAGE + TEXTS:
        config.model.embedding = 64
    config.model.features = 128
    config.optimizer.learning_rate = 3e-3
    config.optimizer.schedule = "cosine"
    config.train.batch = 32
    config.train.steps = 5000
    config.train.eval_every = 500
    config.train.test = "best"
    return config
