"""Temporal order (6a of Hochreiter & Schmidhuber 1997), T = 200..220: 4 classes, chance 0.25.

    python -m experiments.train --config=configs/order.py:gru

Arguments: rnn, lstm, gru, of equal size. The chrono start of LSTM and GRU uses the known length.
"""

from ml_collections import ConfigDict

from configs import base

LENGTH = 200


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "order", (LENGTH,), length=LENGTH)
    base.use_chrono(config, LENGTH)
    config.model.features = {"rnn": 132, "lstm": 64, "gru": 74}[cell]
    config.optimizer.learning_rate = {"rnn": 1e-3, "lstm": 5e-3, "gru": 1e-2}[cell]
    config.train.solved = 0.99
    config.train.stop_when_solved = True
    return config
