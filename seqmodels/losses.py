"""Masked losses as (sum, weight), so that parts add up exactly and are divided once, at the end.

Every loss takes (predictions, targets, weights), with one weight for each loss term, and returns
the weighted sum of its terms and the sum of the weights, both float32 at least. Micro-batches,
devices and hosts add both. Weights may be fractions.

Where a weight is 0 the prediction and the target are replaced before anything is computed, so
neither reaches a value or a gradient, whatever stands there: NaN, Inf, a label of -1. A batch
without weight gives (0, 0) and gradient 0.

Where a weight is not 0, a target outside its range makes loss and gradient NaN: the step that
sees it is not finite, and says so, instead of training on some other label.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer, Shaped

from seqmodels.types import Array

SumAndWeight = tuple[Float[Array, ""], Float[Array, ""]]


def cross_entropy(
    logits: Float[Array, "*terms V"],
    targets: Integer[Array, "*terms"],
    weights: Float[Array, "*terms"],
) -> SumAndWeight:
    """Categorical cross entropy in nats, one term for each label: -log softmax(logits)[label].

    Labels are 0..V-1. Raises ValueError where the shapes do not belong together.
    """
    logits, labels = scored(logits, targets, weights, labels=True)
    valid = in_range(labels, logits.shape[-1])
    labels = jnp.where(valid, labels, 0)
    log_probabilities = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
    return add_up(-picked * nan_unless(valid, picked.dtype), weights)


def binary_cross_entropy(
    logits: Float[Array, "*terms V"],
    targets: Shaped[Array, "*terms V"],
    weights: Float[Array, "*terms"],
) -> SumAndWeight:
    """Cross entropy of V independent yes/no targets in nats, summed over V: one term for each row.

    -sum_v [t_v log s(logit_v) + (1 - t_v) log s(-logit_v)] with s the sigmoid; targets are 0 or 1,
    or anything between, of any dtype. For music the V are the keys and a term is a frame, as in
    Boulanger-Lewandowski et al. 2012. Raises ValueError where the shapes do not belong together.
    """
    logits, targets = scored(logits, targets, weights)
    targets = targets.astype(logits.dtype)
    valid = jnp.all((targets >= 0) & (targets <= 1), axis=-1)
    yes, no = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    terms = -jnp.sum(targets * yes + (1 - targets) * no, axis=-1)
    return add_up(terms * nan_unless(valid, terms.dtype), weights)


def squared_error(
    predictions: Float[Array, "*terms O"],
    targets: Float[Array, "*terms O"],
    weights: Float[Array, "*terms"],
) -> SumAndWeight:
    """Mean over the O outputs of (prediction - target)^2: one term for each row, per output.

    Raises ValueError where the shapes do not belong together.
    """
    predictions, targets = scored(predictions, targets, weights)
    terms = jnp.mean(jnp.square(predictions - targets.astype(predictions.dtype)), axis=-1)
    return add_up(terms, weights)


LOSSES: dict[str, Callable[[Array, Array, Array], SumAndWeight]] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared_error": squared_error,
}


# The parts of which losses and metrics are made.


def scored(
    predictions: Float[Array, "*terms V"],
    targets: Shaped[Array, "..."],
    weights: Float[Array, "*terms"],
    labels: bool = False,
) -> tuple[Float[Array, "*terms V"], Shaped[Array, "..."]]:
    """Predictions, in float32 at least, and targets, both 0 where the weight is 0.

    With `labels` there is one target for each term, else one for each prediction. Raises
    ValueError for other shapes, which might otherwise broadcast to a plausible number.
    """
    wanted = weights.shape if labels else predictions.shape
    if predictions.shape[:-1] != weights.shape or targets.shape != wanted:
        raise ValueError(
            f"predictions {predictions.shape} with weights {weights.shape} need weights "
            f"{predictions.shape[:-1]} and targets {wanted}, got targets {targets.shape}"
        )
    predictions, targets, keep = map(jnp.asarray, (predictions, targets, weights != 0))
    predictions = jnp.where(keep[..., None], predictions, jnp.zeros((), predictions.dtype))
    targets = jnp.where(keep if labels else keep[..., None], targets, jnp.zeros((), targets.dtype))
    return predictions.astype(np.promote_types(predictions.dtype, np.float32)), targets


def in_range(labels: Integer[Array, "*terms"], classes: int) -> Shaped[Array, "*terms"]:
    """True where 0 <= label < classes."""
    if labels.dtype.itemsize < 4:  # may not hold `classes`: uint8 has no 256
        labels = labels.astype(jnp.int32)
    return (labels >= 0) & (labels < classes)


def nan_unless(valid: Shaped[Array, "*terms"], dtype) -> Float[Array, "*terms"]:
    """1 or NaN. A factor rather than a select, so that it reaches the gradient too."""
    return jnp.where(valid, jnp.ones((), dtype), jnp.full((), jnp.nan, dtype))


def add_up(terms: Float[Array, "*terms"], weights: Float[Array, "*terms"]) -> SumAndWeight:
    """(sum of weight * term, sum of weights) in the dtype of the terms."""
    weights = weights.astype(terms.dtype)
    return jnp.sum(weights * terms), jnp.sum(weights)
