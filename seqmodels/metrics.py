"""Metrics as (sum, weight), and the one division that makes a number of them.

Metrics have the signature, the mask and the exactness of `losses`; add both parts over all
batches, then call `mean` or `perplexity` once. A mean of batch means is a different number.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, SupportsFloat

import jax.numpy as jnp
from jaxtyping import Float, Integer

from seqmodels.losses import (
    SumAndWeight,
    add_up,
    binary_cross_entropy,
    cross_entropy,
    in_range,
    nan_unless,
    scored,
    squared_error,
)
from seqmodels.types import Array


def accuracy(
    logits: Float[Array, "*terms V"],
    targets: Integer[Array, "*terms"],
    weights: Float[Array, "*terms"],
) -> SumAndWeight:
    """1 where the label has the largest logit, the first of equals; else 0.

    A NaN logit or a label outside 0..V-1 makes the sum NaN: argmax would take the first NaN for
    the largest, and a broken model would score.
    """
    logits, labels = scored(logits, targets, weights, labels=True)
    best = jnp.argmax(logits, axis=-1)
    correct = (best == labels.astype(best.dtype)).astype(logits.dtype)
    valid = in_range(labels, logits.shape[-1]) & ~jnp.any(jnp.isnan(logits), axis=-1)
    return add_up(correct * nan_unless(valid, correct.dtype), weights)


def bits(
    logits: Float[Array, "*terms V"],
    targets: Integer[Array, "*terms"],
    weights: Float[Array, "*terms"],
) -> SumAndWeight:
    """Cross entropy in bits: nats / ln 2. Its mean is bits per token, or per character."""
    total, weight = cross_entropy(logits, targets, weights)
    return total / math.log(2), weight


class Metric(NamedTuple):
    """How a score is computed and which way it improves."""

    function: Callable[[Array, Array, Array], SumAndWeight]
    higher_is_better: bool


METRICS: dict[str, Metric] = {
    "accuracy": Metric(accuracy, higher_is_better=True),
    "mse": Metric(squared_error, higher_is_better=False),
    "cross_entropy": Metric(cross_entropy, higher_is_better=False),
    "binary_cross_entropy": Metric(binary_cross_entropy, higher_is_better=False),
    "bits": Metric(bits, higher_is_better=False),
}


def mean(total: SupportsFloat, weight: SupportsFloat) -> float:
    """total / weight, on the host, of everything that was scored.

    Raises ValueError unless the weight is positive: a single batch may be without targets, a
    whole evaluation set may not.
    """
    if not float(weight) > 0:
        raise ValueError(f"nothing was scored: the weights add up to {float(weight)}")
    return float(total) / float(weight)


def perplexity(total: SupportsFloat, weight: SupportsFloat) -> float:
    """exp(total / weight) for a total in nats; inf where that is beyond a float.

    Raises ValueError unless the weight is positive.
    """
    try:
        return math.exp(mean(total, weight))
    except OverflowError:
        return math.inf
