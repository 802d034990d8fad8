"""Handwritten digits read one pixel a step, T = 64: accuracy over 10 classes.

    python -m experiments.train --config=configs/digits.py:gru

Arguments: rnn, lstm, gru, of equal size. All three learn it; gates bring nothing here.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "digits")
    config.model.features = {"rnn": 127, "lstm": 64, "gru": 74}[cell]
    config.optimizer.learning_rate = {"rnn": 1e-3, "lstm": 2e-2, "gru": 2e-2}[cell]
    config.optimizer.schedule = "cosine"
    config.train.batch = 30
    config.train.steps = 1200  # 30 epochs
    config.train.eval_every = 80
    config.train.solved = 0.95
    return config
