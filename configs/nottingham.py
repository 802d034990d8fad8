"""Folk tunes, the next frame: nats per frame, with the sizes of `configs/jsb.py`.

    python -m experiments.train --config=configs/nottingham.py:gru

Arguments: rnn, lstm, gru.
"""

from ml_collections import ConfigDict

from configs import jsb


def get_config(cell: str = "lstm") -> ConfigDict:
    config = jsb.get_config(cell, "nottingham")
    config.optimizer.learning_rate = 3e-3 if cell == "rnn" else 1e-2
    config.train.weight_noise = 0.0
    config.train.buckets = (160, 320, 640, 1800)
    config.train.eval_every = 46  # about an epoch
    config.train.steps = 2760
    config.train.patience = 8
    return config
