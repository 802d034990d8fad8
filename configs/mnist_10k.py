"""Handwritten digits as 784 pixels, one a step: accuracy. The first 10,000 training images alone.

    python -m experiments.train --config=configs/mnist_10k.py:gru --config.task.permuted=True

Arguments: rnn, lstm, gru, of equal size. Scores do not compare with those on MNIST's test set. The
file is placed by hand; the error says where to get it.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    base.set_task(config, "mnist_10k", permuted=False)
    config.model.features = {"rnn": 127, "lstm": 64, "gru": 74}[cell]
    config.optimizer.learning_rate = {"rnn": 3e-4, "lstm": 5e-3, "gru": 5e-3}[cell]
    config.optimizer.schedule = "cosine"
    base.use_chrono(config, 784)
    config.train.batch = 50
    config.train.steps = 1600  # 10 epochs
    config.train.eval_every = 160
    config.train.steps_per_call = 20
    config.train.test = "best"
    return config
