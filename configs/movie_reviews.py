"""Snippets of film reviews, for or against: accuracy, beside naive Bayes.

    python -m experiments.train --config=configs/movie_reviews.py:gru

Arguments: rnn, lstm, gru, of equal size. Rows of like length make up a batch. The file is placed by
hand; the error says where to get it.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "movie_reviews")
    config.model.features = {"rnn": 154, "lstm": 64, "gru": 76}[cell]
    config.model.readout = "mean"
    config.model.embedding = 64
    config.model.input_dropout = 0.5
    config.model.head_dropout = 0.5
    config.optimizer.name = "adamw"
    config.optimizer.weight_decay = 0.1
    config.optimizer.learning_rate = {"rnn": 1e-3, "lstm": 5e-3, "gru": 5e-3}[cell]
    config.optimizer.schedule = "cosine"
    config.train.batch = 32
    config.train.buckets = (12, 20, 32, 80)
    config.train.steps = 3990  # 15 epochs
    config.train.eval_every = 133
    config.train.test = "best"
    return config
