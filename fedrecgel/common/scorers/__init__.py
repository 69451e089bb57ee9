"""Scoring functions."""

from fedrecgel.common.scorers.base import Scorer
from fedrecgel.common.scorers.dot import DotScorer
from fedrecgel.common.scorers.neumf import NeuMFScorer

__all__ = ["DotScorer", "NeuMFScorer", "Scorer", "make_scorer"]

_SCORERS: dict[str, type[DotScorer] | type[NeuMFScorer]] = {"neumf": NeuMFScorer, "dot": DotScorer}


def make_scorer(name: str, embedding_dim: int) -> Scorer:
    """Scorer by name (`GradientConfig.scorer`)."""
    return _SCORERS[name](embedding_dim)
