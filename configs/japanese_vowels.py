"""Who says the vowel? Nine speakers, 12 numbers a step, 7 to 29 steps: accuracy.

    python -m experiments.train --config=configs/japanese_vowels.py:gru

Arguments: rnn, lstm, gru, of equal size. The file is placed by hand; the error says where to get
it.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "japanese_vowels")
    config.model.features = {"rnn": 65, "lstm": 31, "gru": 36}[cell]
    config.model.readout = "mean"
    config.model.head_dropout = 0.3
    config.optimizer.learning_rate = {"rnn": 1e-3, "lstm": 5e-3, "gru": 5e-3}[cell]
    config.optimizer.schedule = "cosine"
    config.train.batch = 27
    config.train.steps = 640  # 80 epochs
    config.train.eval_every = 80
    return config
