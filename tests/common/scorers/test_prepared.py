"""What a scorer computes once for all users changes no score."""

import numpy as np
import pytest
import torch

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.scorers.neumf import COLUMNS, ITEM_HALF

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


@pytest.mark.parametrize("num_items", [30, COLUMNS, 2 * COLUMNS + 1])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("scorer", ["neumf", "dot"])
def test_prepared_tensors_change_no_score(scorer: str, dtype: str, num_items: int) -> None:
    settings = {"scorer": scorer, "dtype": dtype, "embedding-dim": 4, "init-std": 1.0}
    algorithm = make_algorithm(make_config("fedncf", settings), num_items)
    shared = algorithm.init_server().shared
    shared = {name: value + 0.01 for name, value in shared.items()}  # biases too
    private = algorithm.init_private(np.arange(3, dtype=np.uint64))
    prepared = algorithm.prepared(shared)
    assert (ITEM_HALF in prepared) == (scorer == "neumf")
    everyone, tolerance = torch.arange(3), TOLERANCE[dtype]
    plain = algorithm.personal_view(Download(shared), private).catalogue(everyone)
    quick = algorithm.personal_view(Download(prepared), private).catalogue(everyone)
    torch.testing.assert_close(quick, plain, rtol=tolerance, atol=tolerance)
    alone = algorithm.personal_view(Download(prepared), private).catalogue(everyone[1:2])
    torch.testing.assert_close(alone[0], plain[1], rtol=tolerance, atol=tolerance)
