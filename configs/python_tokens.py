"""Token kinds of Python source, byte by byte, windows of 256: accuracy over 7 kinds.

    python -m experiments.train --config=configs/python_tokens.py:gru

Arguments: rnn, lstm, gru, of equal size. Being inside a string is the long dependency. Prepares
the running Python's own standard library on the first start.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "python_tokens", window=256)
    config.model.features = {"rnn": 198, "lstm": 96, "gru": 111}[cell]
    config.model.readout = None
    config.model.embedding = 16
    config.optimizer.learning_rate = {"rnn": 1e-3, "lstm": 3e-3, "gru": 3e-3}[cell]
    config.optimizer.schedule = "cosine"
    config.train.batch = 32
    config.train.steps = 1500
    config.train.eval_every = 250
    return config
