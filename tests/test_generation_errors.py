"""What generation refuses, in which words."""

import flax.linen as nn
import jax
import jaxtyping
import numpy as np
import pytest
from test_generation import KEY, LENGTHS, MASK, MODEL, PARAMS, PROMPT, V, labeller, params_of

from seqmodels.cells import GRU, RNN
from seqmodels.generation import generate, start
from seqmodels.layers import Embed, Recurrent, Stack
from seqmodels.models import SequenceClassifier


class Backwards(nn.Module):
    """A layer that no field of the model shows."""

    @nn.compact
    def __call__(self, ids, carry=None, *, mask=None, reset=None):
        return Recurrent(RNN(V), reverse=True)(jax.nn.one_hot(ids, V), carry, mask=mask)


@pytest.mark.parametrize(
    "model, layer",
    [
        (labeller(GRU(6), bidirectional=True), "stack/layer_0"),
        (Backwards(), "Recurrent_0"),
    ],
)
def test_models_that_read_backwards_are_refused(model, layer):
    with pytest.raises(ValueError, match=f"layer {layer} reads backwards.*bidirectional=False"):
        generate(model, params_of(model), PROMPT, KEY, 3)


def test_models_without_an_output_for_each_step_are_refused():
    model = SequenceClassifier(Stack((GRU(6),)), V, Embed(V, 5))
    with pytest.raises(ValueError, match=r"SequenceClassifier gives outputs of shape \(6, 9\)"):
        start(model, params_of(model), PROMPT, KEY)


def fails(message, steps=3, key=KEY, prompt=PROMPT, **options):
    with pytest.raises(ValueError, match=message):
        generate(MODEL, PARAMS, prompt, key, steps, **options)


def test_errors_name_what_does_not_fit():
    fails(r"lengths\[2\]=5 is outside 0\.\.4, T of prompt", lengths=np.int32([4, 1, 5, 3, 2, 0]))
    fails(r"lengths\[1\]=-1 is outside", lengths=np.int32([4, -1, 5, 3, 2, 0]))
    fails("mask or lengths, not both", mask=MASK, lengths=LENGTHS)
    fails("key has shape .4,.; expected one key, or one a row, .6.", key=jax.random.split(KEY, 4))
    fails("key is uint32 .2,.; expected a key of jax.random.key", key=jax.random.PRNGKey(0))
    fails("kind rbg, with which a row would depend", key=jax.random.key(0, impl="rbg"))
    fails("kind unsafe_rbg", key=jax.random.key(0, impl="unsafe_rbg"))
    fails("forbidden: id 9 is not in 0..8", forbidden=(9,))
    for steps in (-1, True):
        fails(f"steps={steps} must be at least 0", steps=steps)
    for name, value in (("temperature", -1), ("top_k", 0), ("top_p", 2)):
        fails(f"{name}={value} must be", **{name: value})


def test_errors_without_checked_annotations():
    """As users run it: shape annotations say nothing, the functions have to."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        fails("prompt is int32 .24,.; expected integers", prompt=PROMPT.ravel())
        fails("prompt is float32 .6, 4.; expected integers", prompt=np.float32(PROMPT))
        fails("mask is bool .6, 3.; expected bool .6, 4.", mask=MASK[:, 1:])
        fails("mask is int32 .6, 4.; expected bool", mask=np.int32(MASK))
        fails("lengths has shape .5,.; expected one a row, .6.", lengths=LENGTHS[:5])
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
