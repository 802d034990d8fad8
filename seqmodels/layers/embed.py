"""Vectors for token ids."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float, Int

from seqmodels import initializers
from seqmodels.types import Array


class Embed(nn.Module):
    """Vectors for token ids: [B, T] -> [B, T, E].

    An input of `padding_id` reads zeros and passes no gradient; None treats every id alike.
    Padding is never guessed from ids: what counts as a real step is the mask's to say. An id
    outside 0..vocabulary-1 reads NaN, so that it shows.
    """

    vocabulary: int
    features: int
    padding_id: int | None = 0

    def setup(self):
        shape = (self.vocabulary, self.features)
        self.embedding = self.param("embedding", initializers.Normal(1.0), shape, jnp.float32)

    def __call__(self, ids: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        ids = jnp.asarray(ids)
        if ids.dtype.itemsize < 4:  # may not hold `vocabulary`
            ids = ids.astype(jnp.int32)
        ids = jnp.where(ids < 0, self.vocabulary, ids)
        x = jnp.take(self.embedding, ids, axis=0, mode="fill", fill_value=jnp.nan)
        if self.padding_id is None:
            return x
        return jnp.where((ids == self.padding_id)[:, :, None], jnp.zeros_like(x), x)

    def attend(self, y: Float[Array, "B T E"]) -> Float[Array, "B T V"]:
        """The product of each y with every vector, for an output that shares them.

        Here the vector of `padding_id` is as good as any: it is not an input.
        """
        return jnp.einsum("bte,ve->btv", y, self.embedding.astype(y.dtype))
