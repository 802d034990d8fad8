"""RNN, LSTM and GRU of equal size on tasks with long dependencies, three seeds each.

    python -m experiments.compare
    python -m experiments.compare --config=configs/compare.py:parity,copy

The argument lists tasks; without it: adding and temporal order at T = 200, and digits.
"""

from ml_collections import ConfigDict

from configs import (
    adding,
    base,
    char_lm,
    copy,
    digits,
    japanese_vowels,
    jsb,
    mnist_10k,
    movie_reviews,
    muse,
    nottingham,
    order,
    parity,
    piano,
    python_tokens,
    temperatures,
    text_files,
)

TASKS = {
    "adding": adding,
    "order": order,
    "digits": digits,
    "parity": parity,
    "copy": copy,
    "python_tokens": python_tokens,
    "char_lm": char_lm,
    "text_files": text_files,
    "jsb": jsb,
    "nottingham": nottingham,
    "muse": muse,
    "piano": piano,
    "movie_reviews": movie_reviews,
    "japanese_vowels": japanese_vowels,
    "mnist_10k": mnist_10k,
    "temperatures": temperatures,
}
OF_A_PAPER = ("jsb", "nottingham", "muse", "piano")
"""At a paper's sizes, of which only the recurrent parts are equal."""


def get_config(tasks: str = "adding,order,digits") -> ConfigDict:
    config = ConfigDict()
    config.seeds = 3  # for every run
    # How far parameter counts may differ inside a task.
    config.match_params = 0.5 if {*tasks.split(",")} & {*OF_A_PAPER} else 0.02
    config.runs = ConfigDict()
    for task in tasks.split(","):
        base.known(task, TASKS)
        for cell in base.CELLS:
            run = TASKS[task].get_config(cell)
            run.train.seeds = config.get_ref("seeds")
            config.runs[f"{task}_{cell}"] = run
    return config.lock()
