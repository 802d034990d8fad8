"""Where the lines are that the findings draw, from arms made by hand."""

import math

import pytest

from configs import base
from experiments.findings import NEAR, RULES, caution, findings, number
from experiments.results import as_dict
from experiments.summary import Arm, stderr

METRIC = {"adding": ("mse", 0.2), "digits": ("accuracy", 0.25), "order": ("accuracy", 0.0)}


def arm(label, scores, task="digits", steps=None, **train):
    """One that ended with these scores; `steps` to solve the task, where it did."""
    config = as_dict(base.get_config("gru" if label == "gru" else "rnn"))
    config["train"].update({"seeds": len(scores), "solved": None, "eval_every": 50} | train)
    metric, chance = METRIC[task]
    rows = [
        {
            "kind": "final",
            "seed": seed,
            "status": "finished",
            "score": score,
            "metric": metric,
            "chance": chance,
            "params": 100,
            "solved": None if steps is None else steps[seed] is not None,
            "steps_to_solve": None if steps is None else steps[seed],
        }
        for seed, score in enumerate(scores)
    ]
    return Arm(task, label, config, tuple(rows))


def said(*arms):
    return " ".join(findings([*arms]))


@pytest.mark.parametrize(
    "task, score, at_chance",
    [
        ("digits", 0.25 + 0.0374, True),  # from 0.25 to 1 the line is at 0.2875
        ("digits", 0.25 + 0.0376, False),
        ("adding", 0.1901, True),  # from 0.2 to 0 it is at 0.19
        ("adding", 0.1899, False),
        ("order", 0.05, True),  # at the line itself
    ],
)
def test_chance_ends_a_twentieth_of_the_way_to_a_perfect_score(task, score, at_chance):
    assert NEAR == 0.05 and "5% of the way" in RULES
    assert ("No better than chance" in said(arm("gru", [score] * 3, task))) is at_chance


@pytest.mark.parametrize("task, sign", [("digits", 1), ("adding", -1)])
@pytest.mark.parametrize("times, clear", [(1.98, False), (2.02, True)])
def test_clear_is_more_than_twice_the_combined_standard_error(task, sign, times, clear):
    """Of three seeds a step apart the standard error is step / sqrt(3)."""
    middle, step = (0.6, 0.01) if task == "digits" else (0.1, 0.002)
    worse = [middle - step, middle, middle + step]
    gain = sign * times * math.hypot(step, step) / math.sqrt(3)
    better = [score + gain for score in worse]
    text = said(arm("rnn", worse, task), arm("gru", better, task))
    assert "twice the combined standard error" in RULES
    assert ("Gates help here: gru does clearly better than rnn" in text) is clear
    assert ("level with each other" in text.lower()) is not clear
    turned = said(arm("rnn", better, task), arm("gru", worse, task))
    assert ("Reversal: rnn, without gates, does clearly better than gru" in turned) is clear


def test_equal_scores_are_level():
    text = said(arm("rnn", [0.9] * 3), arm("gru", [0.9] * 3))
    assert "Gates bring nothing here" in text and "Reversal" not in text


@pytest.mark.parametrize("apart, clear", [(50, False), (51, True)])
def test_steps_are_known_no_better_than_validations_are_apart(apart, clear):
    settings = {"solved": 0.9, "stop_when_solved": True, "eval_every": 50}
    slow = arm("rnn", [0.95] * 3, steps=[200 + apart] * 3, **settings)
    fast = arm("gru", [0.95] * 3, steps=[200] * 3, **settings)
    assert ("clearly ahead of the rest" in said(slow, fast)) is clear


@pytest.mark.parametrize(
    "seeds, words",
    [
        (1, "One seed per cell shows no spread"),
        (2, "2 seeds per cell are few"),
        (9, "9 seeds per cell are few"),
        (10, "10 seeds per cell; even so,"),
    ],
)
def test_how_far_the_number_of_seeds_carries(seeds, words):
    assert caution([arm("gru", [0.5] * seeds)]).startswith(words)


def test_different_numbers_of_seeds_are_a_span():
    assert caution([arm("gru", [0.5] * 2), arm("rnn", [0.5] * 12)]).startswith("2 to 12 seeds")


def test_numbers_have_four_places_below_a_thousand():
    assert [number(n) for n in (0.12345, 999.9, 1000.0, 123456.0)] == [
        "0.1235",
        "999.9000",
        "1000",
        "1.235e+05",
    ]


def test_standard_error_of_the_mean():
    assert stderr([1.0, 2.0, 3.0]) == pytest.approx(1 / math.sqrt(3))
    assert stderr([1.0]) == math.inf


def test_one_seed_is_never_ranked():
    assert "Best score" not in said(arm("gru", [0.9]), arm("rnn", [0.5]))
    assert "Best score" in said(arm("gru", [0.9] * 2), arm("rnn", [0.5] * 2))
