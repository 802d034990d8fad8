"""Adding problem, T = 200: MSE of the sum of two marked numbers; 1/6 without memory.

    python -m experiments.train --config=configs/adding.py:gru

Arguments: rnn, lstm, gru, of equal size. The chrono start of LSTM and GRU uses the known length.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import base

LENGTH = 200


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "adding", (LENGTH,), length=LENGTH, min_length=placeholder(int))
    base.use_chrono(config, LENGTH)
    config.model.features = {"rnn": 129, "lstm": 64, "gru": 74}[cell]
    config.optimizer.learning_rate = {"rnn": 1e-3, "lstm": 1e-2, "gru": 1e-2}[cell]
    config.train.solved = 0.01
    config.train.stop_when_solved = True
    return config
