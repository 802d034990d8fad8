"""Classical pieces of MuseData, the next frame: nats per frame, sizes as in `configs/jsb.py`.

    python -m experiments.train --config=configs/muse.py:gru

Arguments: rnn, lstm, gru.
"""

from ml_collections import ConfigDict

from configs import jsb


def get_config(cell: str = "lstm") -> ConfigDict:
    config = jsb.get_config(cell, "muse")
    config.optimizer.learning_rate = 3e-3 if cell == "rnn" else 1e-2
    config.train.weight_noise = 0.0
    config.train.buckets = (256, 640, 1280, 4300)
    config.train.eval_every = 36  # about an epoch
    config.train.steps = 1440
    config.train.patience = 8
    return config
