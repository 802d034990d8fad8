"""What a model scores that ignores its inputs: the number every accuracy stands beside."""

import numpy as np

from seqmodels.types import Batch


def majority_accuracy(train: Batch, test: Batch) -> float:
    """Accuracy on `test`, in [0, 1], of always answering the most frequent target of `train`.

    Both count only terms of non-zero weight; of equally frequent targets the smallest answers.
    """
    counts = np.bincount(train.targets.ravel(), weights=train.weights.ravel())
    return float(np.average(test.targets == counts.argmax(), weights=test.weights))
