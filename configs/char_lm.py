"""Characters of Python's own help texts as one stream: bits per character on the last tenth.

    python -m experiments.train --config=configs/char_lm.py
    python -m experiments.generate --workdir=runs/pydoc_topics_lstm --prompt="The for statement"

Arguments: rnn, lstm, gru. Truncated backpropagation over 64 characters; the carry goes on from
chunk to chunk and starts anew with each topic.
"""

from ml_collections import ConfigDict

from configs import base


def get_config(cell: str = "lstm") -> ConfigDict:
    config = base.get_config(cell)
    # With passages of train in test, as the figures that this is compared with; False: without.
    base.set_task(config, "pydoc_topics", repeats=True)
    config.model.features = {"rnn": 515, "lstm": 256, "gru": 297}[cell]
    config.model.readout = None
    config.model.embedding = 64
    config.model.input_dropout = 0.3
    config.model.head_dropout = 0.4
    config.optimizer.learning_rate = {"rnn": 1e-3, "lstm": 4e-3, "gru": 3e-3}[cell]
    config.optimizer.schedule = "cosine"
    config.train.seeds = 1
    config.train.batch = 32
    config.train.chunk = 64
    config.train.steps = 6000
    config.train.eval_every = 300
    config.train.steps_per_call = 10
    config.train.test = "best"
    config.eval.batch = 16
    return config
