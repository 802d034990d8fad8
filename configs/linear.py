"""Cells that are linear in their carry, on the adding problem at T = 200.

    python -m experiments.train --config=configs/linear.py:min_gru

Arguments: min_gru, min_lstm, lru. The gates of the first two see the input, which is enough to take
up the marked numbers; the last is linear throughout, and alone hardly does better than chance.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(cell: str = "min_gru") -> ConfigDict:
    config = base.get_config(cell, base.LINEAR)
    config.model.features = 256
    config.train.batch = 50
    config.train.steps = 1000
    return config
