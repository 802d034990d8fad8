"""Parity of up to 20 bits, tested on 100, then 20 and 500: plain recurrence is enough.

    python -m experiments.train --config=configs/parity.py:gru

Arguments: rnn, lstm, gru, of equal size. A control: every cell learns it and goes on counting.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import base

LENGTH = 20


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "parity", (100, LENGTH, 500), length=LENGTH, min_length=placeholder(int))
    config.task.min_length = 1
    config.model.features = {"rnn": 65, "lstm": 32, "gru": 37}[cell]
    config.optimizer.learning_rate = 3e-3
    config.train.batch = 64
    config.train.steps = 3000
    config.train.eval_every = 100
    config.train.solved = 0.999
    return config
