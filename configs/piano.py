"""Piano pieces, the next frame: nats per frame, with the sizes of `configs/jsb.py`.

    python -m experiments.train --config=configs/piano.py:gru

Arguments: rnn, lstm, gru.
"""

from ml_collections import ConfigDict

from configs import jsb


def get_config(cell: str = "lstm") -> ConfigDict:
    config = jsb.get_config(cell, "piano")
    config.optimizer.learning_rate = 3e-3 if cell == "rnn" else 1e-2
    config.train.weight_noise = 0.04
    config.train.buckets = (512, 1024, 2048, 4300)
    config.train.eval_every = 8  # about an epoch
    config.train.steps = 640
    config.train.patience = 8
    return config
