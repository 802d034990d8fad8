"""Bytes of any text files, however large, as one stream: bits per byte on their last twentieth.

    python -m experiments.train --config=configs/text_files.py:gru --config.task.path=big.txt

Arguments: rnn, lstm, gru. The files are read while the model computes, never as a whole.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import char_lm


def get_config(cell: str = "lstm") -> ConfigDict:
    config = char_lm.get_config(cell)
    config.label = f"{cell} on files"
    config.model.features = {"rnn": 487, "lstm": 256, "gru": 295}[cell]
    with config.unlocked():
        config.task = ConfigDict({"name": "text_files", "path": "README.md"})
        config.task.separator = placeholder(str)  # ends a document, as in "\n\n\n"
        config.task.encoding = placeholder(str)  # utf-8: checked before the first step
    config.train.workers = 1
    return config
