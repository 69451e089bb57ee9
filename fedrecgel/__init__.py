"""fedrecgel: a federated recommender on Flower."""

__version__ = "0.1.0"
