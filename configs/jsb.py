"""Polyphonic music, the next frame of Bach's chorales: nats per frame, at the sizes of a paper.

    python -m experiments.train --config=configs/jsb.py:gru

Arguments: rnn, lstm, gru, of 100, 36 and 46 units as in Chung et al. 2014 (arXiv:1412.3555, table
2: 9.10, 8.67, 8.54), which makes their recurrent parts equal, not the whole. Gaussian noise on the
parameters is what keeps these small sets from being learnt by heart.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(cell: str = "lstm", pieces: str = "jsb") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "music", set=pieces)
    config.model.features = {"rnn": 100, "lstm": 36, "gru": 46}[cell]
    config.model.readout = None
    config.model.head_start = "frequencies"
    if cell == "gru":
        config.model.gate_bias = 0.0
    config.optimizer.learning_rate = 3e-3
    config.train.weight_noise = 0.075
    config.train.batch = 16
    config.train.buckets = (72, 160)
    config.train.steps = 4500  # 300 epochs at most
    config.train.eval_every = 15  # an epoch
    config.train.steps_per_call = 15
    config.train.test = "best"
    config.train.patience = 15
    config.train.drops = 3
    config.train.drop_factor = 1 / 3
    config.eval.batch = 32
    return config
