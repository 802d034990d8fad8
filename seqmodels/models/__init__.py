"""Whole models as Flax modules, one file a kind."""

from seqmodels.models.classifier import SequenceClassifier
from seqmodels.models.labeller import SequenceLabeller

__all__ = ["SequenceClassifier", "SequenceLabeller"]
