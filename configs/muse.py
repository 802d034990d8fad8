"""Classical pieces of MuseData, the next frame: nats per frame, settings as in `configs/jsb.py`.

    python -m experiments.train --config=configs/muse.py:gru

Arguments: rnn, lstm, gru.
"""

from ml_collections import ConfigDict

from configs import jsb


def get_config(cell: str = "lstm") -> ConfigDict:
    config = jsb.get_config(cell, "muse")
    config.train.buckets = (256, 640, 1280, 4300)
    config.train.eval_every = 36  # about an epoch
    config.train.steps = 1440
    config.train.patience = 8
    return config
