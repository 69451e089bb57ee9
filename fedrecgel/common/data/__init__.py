"""From files of interactions to prepared data sets."""

from fedrecgel.common.data.dataset import Dataset, from_arrays, make_dataset
from fedrecgel.common.data.manifest import Manifest
from fedrecgel.common.data.prepare import prepare
from fedrecgel.common.data.read import Interactions, read_interactions

__all__ = [
    "Dataset",
    "Interactions",
    "Manifest",
    "from_arrays",
    "make_dataset",
    "prepare",
    "read_interactions",
]
