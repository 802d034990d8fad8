"""Scores of answers that need no training: the numbers every accuracy stands beside.

All are functions of loaded rows: `train` is what may be learnt from, `scored` what is answered.
"""

import numpy as np

from seqmodels.data.rows import Rows


def majority_accuracy(scored: Rows) -> float:
    """Accuracy, in [0, 1], of the one answer for all that is right most often on these very rows.

    The best that a model can do which ignores its inputs, whatever it answers and however it came
    to it; never below blind guessing, 1 / classes. The most frequent answer of training may well
    score less, where classes are rarer in the rows scored than they were there. Terms count by
    their weights.
    """
    assert scored.targets is not None
    counts = np.bincount(scored.targets, weights=scored.weights)
    return float(counts.max() / counts.sum())


def symbol_accuracy(train: Rows, scored: Rows) -> float:
    """Accuracy on `scored` of answering, at each step, what `train` has most for this input id.

    For one label a step: what can be known of it without memory. An id that `train` has not gets
    the label 0.
    """
    assert train.targets is not None and scored.targets is not None
    ids = int(max(train.inputs.max(), scored.inputs.max())) + 1
    labels = int(train.targets.max()) + 1
    counts = np.bincount(train.inputs * labels + train.targets, minlength=ids * labels)
    answers = counts.reshape(ids, labels).argmax(axis=1)
    return float(np.mean(answers[scored.inputs] == scored.targets))


def naive_bayes_accuracy(train: Rows, scored: Rows, symbols: int) -> float:
    """Accuracy on `scored` of multinomial naive Bayes on the counts of ids and of pairs of them.

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
    return float(model.score(features(scored), scored.targets))


PAIRS = 2**20
"""Pairs of ids share so many counters."""
