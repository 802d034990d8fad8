"""Scores of answers that need no training: the numbers every accuracy stands beside."""

import numpy as np

from seqmodels.data.rows import Rows


def majority_accuracy(train: Rows, test: Rows) -> float:
    """Accuracy on `test`, in [0, 1], of always answering the most frequent target of `train`.

    Both count only terms of non-zero weight; of equally frequent targets the smallest answers.
    """
    assert train.targets is not None and test.targets is not None
    counts = np.bincount(train.targets, weights=train.weights)
    return float(np.average(test.targets == counts.argmax(), weights=test.weights))


def symbol_accuracy(train: Rows, test: Rows) -> float:
    """Accuracy on `test` of answering, at each step, what `train` has most often for this input id.

    For one label a step: what can be known of it without memory. An id that `train` has not gets
    the label 0.
    """
    assert train.targets is not None and test.targets is not None
    ids = int(max(train.inputs.max(), test.inputs.max())) + 1
    labels = int(train.targets.max()) + 1
    counts = np.bincount(train.inputs * labels + train.targets, minlength=ids * labels)
    answers = counts.reshape(ids, labels).argmax(axis=1)
    return float(np.mean(answers[test.inputs] == test.targets))


def naive_bayes_accuracy(train: Rows, test: Rows, symbols: int) -> float:
    """Accuracy on `test` of multinomial naive Bayes on the counts of ids and of pairs of them.

    One label a row. Add-one smoothing; scikit-learn's `MultinomialNB`.
    """
    from scipy.sparse import csr_matrix
    from sklearn.naive_bayes import MultinomialNB

    def features(rows: Rows) -> csr_matrix:
        row = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
        ids = np.asarray(rows.inputs, np.int64)
        inside = row[1:] == row[:-1]
        pairs = symbols + (ids[:-1] * symbols + ids[1:])[inside] % PAIRS
        columns = np.concatenate([ids, pairs])
        places = np.concatenate([row, row[1:][inside]])
        shape = (len(rows.lengths), symbols + PAIRS)
        return csr_matrix((np.ones(len(columns)), (places, columns)), shape)

    model = MultinomialNB().fit(features(train), train.targets)
    return float(model.score(features(test), test.targets))


PAIRS = 2**20
"""Pairs of ids share so many counters."""
