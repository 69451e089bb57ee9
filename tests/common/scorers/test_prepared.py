"""What a scorer computes once for all users changes no score."""

import numpy as np
import pytest
import torch

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.scorers.neumf import ITEM_HALF


@pytest.mark.parametrize("scorer", ["neumf", "dot"])
def test_prepared_tensors_change_no_score(scorer: str) -> None:
    settings = {"scorer": scorer, "dtype": "float64", "embedding-dim": 4, "init-std": 1.0}
    algorithm = make_algorithm(make_config("fedncf", settings), 30)
    shared = algorithm.init_server().shared
    private = algorithm.init_private(np.arange(3, dtype=np.uint64))
    prepared = algorithm.prepared(shared)
    assert (ITEM_HALF in prepared) == (scorer == "neumf")
    everyone = torch.arange(3)
    plain = algorithm.personal_view(Download(shared), private).catalogue(everyone)
    quick = algorithm.personal_view(Download(prepared), private).catalogue(everyone)
    torch.testing.assert_close(quick, plain, rtol=1e-12, atol=1e-12)
    alone = algorithm.personal_view(Download(prepared), private).catalogue(everyone[1:2])
    torch.testing.assert_close(alone[0], plain[1], rtol=1e-12, atol=1e-12)
