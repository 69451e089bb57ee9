"""References that see everybody's interactions in one place, under the same split as a run.

They are not federated and not private: they say what a model can reach that is allowed to look.
"""
