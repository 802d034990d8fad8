"""What the numbers say, in plain sentences: nothing is known here but the arms themselves.

Every claim follows RULES, which the report prints above them. Arms that diverged or are not
complete are named, and never ranked.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from experiments.results import Row
from experiments.summary import Arm, stderr

NEAR = 0.05
"""Share of the way from chance to a perfect score that is still called chance."""

RULES = (
    "Scores are those of the test set, as mean ± sample standard deviation over seeds; seeds that "
    "diverged are left out. Two cells are level when their means differ by no more than twice the "
    "combined standard error, √(s₁²/n₁ + s₂²/n₂); otherwise one is clearly better. A seed is no "
    f"better than chance unless it is ahead of it by {NEAR:.0%} of the way to a perfect score. It "
    "has solved a task at the first validation that passes the threshold; where rows are drawn, "
    "a second, fresh set confirms it."
)


def number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def score(arm: Arm) -> str:
    """ "0.9840 ± 0.0066"; a single seed has no spread."""
    if not arm.scores:
        return "no score"
    mean = number(statistics.fmean(arm.scores))
    return f"{mean} ± {number(statistics.stdev(arm.scores))}" if len(arm.scores) > 1 else mean


def caution(arms: list[Arm]) -> str:
    """How far the number of seeds carries, for all tasks."""
    few, many = (f(len(arm.seeds) for arm in arms) for f in (min, max))
    if many == 1:
        return "One seed per cell shows no spread, so no two cells are compared."
    count = f"{few} to {many}" if few < many else f"{many}"
    rough = " are few: the spread itself is a rough estimate, and" if few < 10 else "; even so,"
    return (
        f"{count} seeds per cell{rough} what is called clear here is an indication, not a test "
        "of significance."
    )


def findings(arms: list[Arm]) -> list[str]:
    """Sentences about the arms of one task."""
    ranked = [arm for arm in arms if arm.status == "ok" and len(arm.scores) > 1]
    able = [arm for arm in ranked if _at_chance(arm) < len(arm.scores)]
    said = [
        *_solved(arms),
        *_chance([arm for arm in arms if arm.scores and not arm.diverged]),
        *_order(able),
        *(_gates(ranked) if able else []),
        *_lengths([arm for arm in arms if not arm.diverged]),
        *_troubles(arms),
        *_conditions(arms),
    ]
    return [f"{sentence}." for sentence in said]


def _solved(arms: list[Arm]) -> Iterable[str]:
    for threshold in dict.fromkeys(arm.threshold for arm in arms):
        group = [arm for arm in arms if arm.threshold == threshold and arm.solved is not None]
        if threshold is None or not group:
            continue
        scale = group[0].scale
        side = "above" if scale.higher_is_better else "below"
        every = [arm for arm in group if _solved_all(arm)]
        some = [arm for arm in group if arm.solved and arm not in every]
        none = [arm for arm in group if not arm.solved]
        parts = [f"Threshold: validation {scale.name} {side} {threshold:g}"]
        if every:
            parts.append(f"Solved on every seed: {_list(every, _updates)}")
        if some:
            parts.append(f"Solved on some: {_list(some, _share)}")
        if none:
            parts.append(f"Solved on none: {_names(none)}")
        yield ". ".join(parts)


def _chance(arms: list[Arm]) -> Iterable[str]:
    low = [arm for arm in arms if _at_chance(arm)]
    if low:
        yield f"No better than chance ({number(low[0].chance)}): " + "; ".join(
            f"{arm.label} on {_of(_at_chance(arm), len(arm.scores))}, {score(arm)}" for arm in low
        )
    unsolved = [arm for arm in arms if arm.threshold is not None and not _solved_all(arm)]
    between = [arm for arm in unsolved if arm not in low]
    if between:
        yield f"Better than chance, but not solved on every seed: {_list(between, score)}"


def _order(arms: list[Arm]) -> Iterable[str]:
    """Who is ahead and who is level, of arms that do better than chance."""
    by_steps = [arm for arm in arms if _by_steps(arm)]
    by_score = [arm for arm in arms if arm not in by_steps]
    if len(by_steps) > 1:
        yield (
            "Seeds stop once they have solved it, so cells that did so on every seed differ in "
            "updates, not in score"
        )
        what = "fewest updates on average"
        yield from _places(by_steps, what, lambda arm: f"{_mean_steps(arm):.0f}")
    if len(by_score) > 1:
        what = "best score of the other cells" if by_steps else "best score"
        yield from _places(by_score, what, score)


def _places(arms: list[Arm], what: str, show: Callable[[Arm], str]) -> Iterable[str]:
    groups: list[list[Arm]] = []
    for arm in sorted(arms, key=_merit, reverse=True):
        group = groups[-1] if groups else []
        if group and all(_versus(arm, o) == 0 and arm.solved == o.solved for o in group):
            group.append(arm)
        else:
            groups.append([arm])
    best, *rest = groups
    close = [arm for group in rest for arm in group if any(_versus(b, arm) == 0 for b in best)]
    level = ", level with each other" if len(best) > 1 else ""
    ahead = f"not clearly ahead of {_names(close)}" if close else "clearly ahead of the rest"
    yield f"{what.capitalize()}{level}: {_list(best, show)}" + (f"; {ahead}" if rest else "")
    for group in rest:
        if len(group) > 1:
            yield f"Level with each other: {_list(group, show)}"


def _gates(arms: list[Arm]) -> Iterable[str]:
    gated, plain = [a for a in arms if a.gated], [a for a in arms if not a.gated]
    if not gated or not plain:
        return
    for arm in plain:
        beaten = [other for other in gated if _versus(arm, other) > 0]
        if beaten:
            yield f"Reversal: {arm.label}, without gates, does clearly better than {_names(beaten)}"
    best = max(plain, key=_merit)
    winners = [arm for arm in gated if all(_versus(arm, other) > 0 for other in plain)]
    if winners:
        do = "does" if len(winners) == 1 else "do"
        yield f"Gates help here: {_names(winners)} {do} clearly better than {_names(plain)}"
    elif any((arm.solved or 0) > (best.solved or 0) for arm in gated):
        yield (
            f"Whether gates help is open: no gated cell has a clearly better score than "
            f"{best.label}, but some solved the task on more seeds"
        )
    else:
        yield f"Gates bring nothing here: no gated cell does clearly better than {best.label}"


def _lengths(arms: list[Arm]) -> Iterable[str]:
    tested = {arm.label: arm.tests() for arm in arms if len(arm.tests()) > 1}
    if not tested:
        return
    trained = arms[0].config["task"]["length"]
    longest = max(length for tests in tested.values() for length in tests)
    if longest > trained:
        means = {
            label: statistics.fmean(row["score"] for row in tests[longest])
            for label, tests in tested.items()
            if longest in tests
        }
        listed = "; ".join(f"{label}, {number(mean)}" for label, mean in means.items())
        yield f"At length {longest}, beyond the training length of {trained}: {listed}"


def _troubles(arms: list[Arm]) -> Iterable[str]:
    for arm in arms:
        total, ended = len(arm.seeds), len(arm.finals)
        if arm.diverged:
            yield (
                f"Diverged: {arm.label}, on {_of(len(arm.diverged), total)}. It is not ranked, "
                "and those seeds enter no mean"
            )
        if ended < total:
            missing = f"{_of(ended, total)} ended. It is not ranked"
            why = (
                f"Failed: {arm.label} ({arm.error})" if arm.error else f"Not finished: {arm.label}"
            )
            yield f"{why}; {missing}"


def _conditions(arms: list[Arm]) -> Iterable[str]:
    """What the cells were given: the same, as far as it can be."""
    lengths = {arm.label: arm.config["model"]["chrono_length"] for arm in arms}
    for length in dict.fromkeys(n for n in lengths.values() if n is not None):
        labels = [label for label, n in lengths.items() if n == length]
        yield (
            f"Chrono start of the gates: {_names(labels)}. It uses T = {length}, the length of "
            "the longest dependency, known in advance"
        )
    params = [arm.params for arm in arms if arm.params is not None]
    if len(params) > 1:
        few, many = min(params), max(params)
        apart = f"{few} to {many}, at most {many / few - 1:.1%} apart"
        yield f"Parameters: {apart if few < many else f'{few} for every cell'}"
    differing = [*_differences({arm.label: arm.config for arm in arms})]
    if differing:
        yield f"Settings that differ between cells: {'; '.join(differing)}"


def _differences(configs: dict[str, Row]) -> Iterable[str]:
    """Fields of training and test, and of the model but for what makes the cell."""
    own = {"cell", "features", "activation", "gate_bias", "chrono_length"}
    for group in ("model", "optimizer", "train", "eval"):
        for field in dict.fromkeys(key for config in configs.values() for key in config[group]):
            if group == "model" and field in own:
                continue
            labels: dict[str, list[str]] = {}
            for label, config in configs.items():
                labels.setdefault(str(config[group].get(field)), []).append(label)
            if len(labels) > 1:
                yield f"{group}.{field} is {_by_value(labels)}"


def _by_value(labels: dict[str, list[str]]) -> str:
    """ "0.001 for rnn, 0.01 for the others": the commonest value needs no names."""
    *rare, common = sorted(labels, key=lambda value: len(labels[value]))
    listed = [f"{value} for {_names(labels[value])}" for value in rare]
    others = "the others" if len(labels[common]) > 1 else _names(labels[common])
    return ", ".join([*listed, f"{common} for {others}"])


def _at_chance(arm: Arm) -> int:
    """How many seeds are no better than chance."""
    way = abs(arm.scale.higher_is_better - arm.chance)  # an accuracy ends at 1, a loss at 0
    return sum(arm.scale.sign * (score - arm.chance) <= NEAR * way for score in arm.scores)


def _solved_all(arm: Arm) -> bool:
    return arm.solved == len(arm.seeds)


def _by_steps(arm: Arm) -> bool:
    """Seeds that stop at the threshold all score about that: updates tell them apart."""
    return _solved_all(arm) and arm.config["train"]["stop_when_solved"]


def _merit(arm: Arm) -> tuple[bool, float]:
    """Sorts arms of one task, the best last."""
    if _by_steps(arm):
        return True, -_mean_steps(arm)
    return False, arm.scale.sign * statistics.fmean(arm.scores)


def _versus(a: Arm, b: Arm) -> int:
    """1 where a is clearly better than b, -1 where it is clearly worse, 0 where they are level."""
    of_a: Sequence[float] = a.scores
    of_b: Sequence[float] = b.scores
    sign, grain = a.scale.sign, 0
    if _by_steps(a) and _by_steps(b):
        sign, of_a, of_b = -1, a.steps_to_solve, b.steps_to_solve
        # Steps are known to the validation, no better.
        grain = max(arm.config["train"]["eval_every"] for arm in (a, b))
    gain = sign * (statistics.fmean(of_a) - statistics.fmean(of_b))
    margin = max(grain, 2 * math.hypot(stderr(of_a), stderr(of_b)))
    return (gain > margin) - (gain < -margin)


def _mean_steps(arm: Arm) -> float:
    return statistics.fmean(arm.steps_to_solve)


def _updates(arm: Arm) -> str:
    """ "after 350 updates (median; 300 to 400)" """
    steps = arm.steps_to_solve
    spread = "" if min(steps) == max(steps) else f" (median; {min(steps)} to {max(steps)})"
    return f"after {statistics.median(steps):g} updates{spread}"


def _share(arm: Arm) -> str:
    return f"{_of(arm.solved or 0, len(arm.seeds))}, {_updates(arm)}"


def _of(count: int, total: int) -> str:
    return f"{count} of {total} seed{'s' * (total > 1)}"


def _list(arms: Iterable[Arm], show: Callable[[Arm], str]) -> str:
    return "; ".join(f"{arm.label}, {show(arm)}" for arm in arms)


def _names(items: Iterable[Arm | str]) -> str:
    names = [item if isinstance(item, str) else item.label for item in items]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
