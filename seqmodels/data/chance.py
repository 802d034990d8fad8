"""What a model scores that ignores its inputs: the number every accuracy stands beside."""

import numpy as np

from seqmodels.data.rows import Rows


def majority_accuracy(train: Rows, test: Rows) -> float:
    """Accuracy on `test`, in [0, 1], of always answering the most frequent target of `train`.

    Both count only terms of non-zero weight; of equally frequent targets the smallest answers.
    """
    assert train.targets is not None and test.targets is not None
    counts = np.bincount(train.targets, weights=train.weights)
    return float(np.average(test.targets == counts.argmax(), weights=test.weights))
