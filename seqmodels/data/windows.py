"""Forecasting windows: the next H steps of a multivariate series from the C steps before them.

Series of all entities stand behind each other in arrays of P steps, sorted by entity and time;
`times` count sampling steps, so that times that differ by 1 are neighbours. A window is the
position it starts at, never a copy: windows overlap in one storage.

    start ... start + C - 1      inputs
    start + C ... start + C + H - 1      targets

Missing values are NaN. A step with a missing input is masked: for a recurrent network that means
the carry stays as it is and no output is read, which is the same as a row without that step, so
`forecast_rows` leaves it out. (To keep the other features of such a step, fill in the value
before and add a feature that says so.) A window with a missing target, or without any input, is
left out: a row has one weight for all its targets.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Integer, Shaped

from seqmodels.data.rows import Rows
from seqmodels.data.splits import Spans


def window_starts(
    entities: Shaped[np.ndarray, "P"],
    times: Integer[np.ndarray, "P"],
    length: int,
    stride: int = 1,
    parts: Shaped[np.ndarray, "P"] | None = None,
) -> Int[np.ndarray, "N"]:
    """Where windows of `length` = C + H steps start, inside an entity and across no gap in time.

    stride  steps from one window to the next, counted from the start of each stretch without gap
    parts   the split of each step, where windows may not cross from one into the next. To leave
            free steps between splits as well, use `splits.by_horizon` on all windows instead

    Raises ValueError for a length or stride below 1, or for steps that are not in order.
    """
    for field, value in (("length", length), ("stride", stride)):
        if value < 1:
            raise ValueError(f"{field} is {value}; allowed: 1 or more steps")
    _check_order(entities, times)
    breaks = (entities[1:] != entities[:-1]) | (np.diff(times.astype(np.int64)) != 1)
    if parts is not None:
        breaks |= parts[1:] != parts[:-1]
    run = np.cumsum(np.append(np.zeros(len(times[:1]), np.int64), breaks))
    begin = np.searchsorted(run, run)  # the first step of each step's stretch
    starts = np.arange(max(len(run) - length + 1, 0))
    fits = run[starts] == run[starts + length - 1]
    return starts[fits & ((starts - begin[starts]) % stride == 0)]


def window_spans(
    entities: Shaped[np.ndarray, "P"],
    times: Integer[np.ndarray, "P"],
    starts: Int[np.ndarray, "N"],
    length: int,
) -> Spans:
    """What the windows cover, inputs and targets, as `splits.check` and `by_horizon` take it."""
    return Spans(entities[starts], times[starts], times[starts + length - 1])


def forecast_rows(
    inputs: Float[np.ndarray, "P E"],
    series: Float[np.ndarray, "P F"],
    starts: Int[np.ndarray, "N"],
    context: int,
    horizon: int,
) -> tuple[Rows, Bool[np.ndarray, "N"]]:
    """Windows as rows with targets float32 [n, H·F], step by step, and which n of the N they are.

    The storage is float32 and holds the steps that are an input of some window, once each; what
    stands elsewhere, such as in the targets of the last windows, does not get into it.
    """
    mask = ~np.isnan(inputs).any(axis=1)
    first = context + np.arange(horizon)
    targets = series[starts[:, None] + first].reshape(len(starts), -1)
    before = np.append(0, np.cumsum(mask))  # real steps before each position
    kept = ~np.isnan(targets).any(axis=1) & (before[starts + context] > before[starts])
    starts, targets = starts[kept], targets[kept]

    used = np.zeros(len(inputs) + 1, np.int64)
    np.add.at(used, starts, 1)
    np.add.at(used, starts + context, -1)
    stored = mask & (np.cumsum(used)[:-1] > 0)
    before = np.append(0, np.cumsum(stored))
    rows = Rows(
        inputs=inputs[stored].astype(np.float32),
        targets=targets.astype(np.float32),
        starts=before[starts].astype(np.int32),
        lengths=(before[starts + context] - before[starts]).astype(np.int32),
    )
    return rows, kept


class Normaliser(NamedTuple):
    """Mean and standard deviation of each feature, of all data or of each entity.

    mean, std  float64 [K, F], K = 1 where `entities` is None
    entities   the K entities, sorted
    """

    mean: Float[np.ndarray, "K F"]
    std: Float[np.ndarray, "K F"]
    entities: Shaped[np.ndarray, "K"] | None = None


def fit_normaliser(
    values: Float[np.ndarray, "P F"],
    train: Shaped[np.ndarray, "_"],
    entities: Shaped[np.ndarray, "P"] | None = None,
) -> Normaliser:
    """Mean and population standard deviation over the training steps, missing values left out.

    train     the steps of the training part, as positions or as a mask [P]; no other value is read.
              Training targets are among them: the numbers depend on these, as the weights of a
              model do, but on no value that is scored in validation or test
    entities  the entity of each step, to normalise each by itself; None: all alike

    A feature that does not vary has std 1, so it becomes 0 (to rounding).

    Raises ValueError where a feature has no training value, or an infinite one.
    """
    values = values[train].astype(np.float64)
    names, code = None, np.zeros(len(values), np.int64)
    if entities is not None:
        names, code = np.unique(entities[train], return_inverse=True)
    groups = [values[code == index] for index in range(1 if names is None else len(names))]
    for index, group in enumerate(groups):
        bad = np.isnan(group).all(axis=0) | np.isinf(group).any(axis=0)
        if bad.any():
            of = "" if names is None else f" of entity {names.tolist()[index]!r}"
            raise ValueError(
                f"feature {int(bad.argmax())}{of} is missing in the whole training part, "
                "or infinite; allowed: finite numbers, NaN for missing"
            )
    mean = np.stack([np.nanmean(group, axis=0) for group in groups])
    std = np.stack([np.nanstd(group, axis=0) for group in groups])
    # Not std > 0: rounding gives the std of equal numbers a little more than that.
    varies = np.stack([np.nanmax(group, axis=0) > np.nanmin(group, axis=0) for group in groups])
    return Normaliser(mean, np.where(varies, std, 1.0), names)


def normalise(
    normaliser: Normaliser,
    values: Float[np.ndarray, "P *rest F"],
    entities: Shaped[np.ndarray, "P"] | None = None,
) -> Float[np.ndarray, "P *rest F"]:
    """(values - mean) / std in float64, of steps or of rows of any shape; NaN stays NaN.

    Raises ValueError for an entity without a training part.
    """
    mean, std = _of(normaliser, values, entities)
    return (values - mean) / std


def restore(
    normaliser: Normaliser,
    values: Float[np.ndarray, "P *rest F"],
    entities: Shaped[np.ndarray, "P"] | None = None,
) -> Float[np.ndarray, "P *rest F"]:
    """The inverse of `normalise`: predictions in original units, float64.

    An MSE in normalised units times std² is one in original units, as long as all its terms have
    the same std.
    """
    mean, std = _of(normaliser, values, entities)
    return values * std + mean


def persistence(history: Float[np.ndarray, "N C"], horizon: int) -> Float[np.ndarray, "N H"]:
    """Forecasts the last value for each of the next `horizon` steps."""
    return np.repeat(history[:, -1:], horizon, axis=1)


def seasonal_naive(
    history: Float[np.ndarray, "N C"], horizon: int, period: int
) -> Float[np.ndarray, "N H"]:
    """Forecasts the value one period before, or the last whole number of periods for H > period.

    Raises ValueError if the history is shorter than the period.
    """
    if not 1 <= period <= history.shape[1]:
        raise ValueError(
            f"period is {period}; allowed: 1 to the {history.shape[1]} steps of context"
        )
    return history[:, history.shape[1] - period + np.arange(horizon) % period]


def _of(
    normaliser: Normaliser,
    values: Float[np.ndarray, "P *rest F"],
    entities: Shaped[np.ndarray, "P"] | None,
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Mean and std of each row of `values`, to be broadcast over the axes between P and F."""
    row = np.zeros(len(values), np.int64)
    if (normaliser.entities is None) != (entities is None):
        state = "none were" if entities is None else "they were"
        raise ValueError(f"entities: {state} given; the normaliser was fitted the other way")
    if entities is not None and normaliser.entities is not None:
        unknown = ~np.isin(entities, normaliser.entities)
        if unknown.any():
            name = entities[unknown].tolist()[0]
            raise ValueError(
                f"entity {name!r} has no training part; allowed: "
                f"{', '.join(map(repr, normaliser.entities.tolist()))}"
            )
        row = np.searchsorted(normaliser.entities, entities)
    shape = (len(values), *[1] * (values.ndim - 2), -1)
    return normaliser.mean[row].reshape(shape), normaliser.std[row].reshape(shape)


def _check_order(entities: Shaped[np.ndarray, "P"], times: Integer[np.ndarray, "P"]) -> None:
    same = entities[1:] == entities[:-1]
    if len(bad := np.flatnonzero(same & (np.diff(times.astype(np.int64)) <= 0))):
        at = bad[0] + 1
        raise ValueError(
            f"step {at} (entity {entities[at : at + 1].tolist()[0]!r}, time {times[at]}) follows "
            f"time {times[at - 1]}; allowed: ascending times in each entity"
        )
    heads = entities[np.flatnonzero(np.append(np.ones(len(entities[:1]), bool), ~same))]
    if len(np.unique(heads)) < len(heads):
        names, counts = np.unique(heads, return_counts=True)
        name = names[counts > 1].tolist()[0]
        raise ValueError(f"entity {name!r} stands in several places; allowed: one after the other")
