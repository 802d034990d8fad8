"""Copy memory, delay T = 20: nats per step over T + 20 steps; 10 ln 8 / (T + 20) without memory.

    python -m experiments.train --config=configs/copy.py:gru

Arguments: rnn, lstm, gru, of equal size. A slow one: the gated cells need 3,000 to 8,000 steps,
about a minute a seed. The chrono start uses the known length, 3T/2.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import base

LENGTH = 20


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "copy", (LENGTH,), length=LENGTH, min_length=placeholder(int))
    base.use_chrono(config, 3 * LENGTH // 2)
    config.model.features = {"rnn": 195, "lstm": 96, "gru": 111}[cell]
    config.model.readout = None
    config.optimizer.learning_rate = {"rnn": 1e-3, "lstm": 1e-2, "gru": 1e-2}[cell]
    config.train.batch = 32
    config.train.steps = 10_000
    config.train.eval_every = 100
    config.train.solved = 0.01
    config.train.stop_when_solved = True
    return config
