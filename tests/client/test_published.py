"""The published model is whole whenever its writer dies."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrecgel.client.published import load_published, published_file
from fedrecgel.common.errors import RunError

WRITER = """
import itertools, sys
from pathlib import Path
import numpy as np, torch
from fedrecgel.client.published import publish
from fedrecgel.client.site import Site
from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.common.requests import EvaluateRequest, Experiment

data = make_dataset([[0, 1], [2]], validation=[2, 0], test=[3, 1], num_items=5)
site = Site("clinic-a", data, 0, 2, Path(sys.argv[1]))
experiment = Experiment("e", "fedmf", {}, 5)
accepted = np.zeros(2, dtype=np.int64)
for round in itertools.count(1):
    shared = {"items": torch.full((300, 100 + round % 7), float(round))}
    publish(site, EvaluateRequest(experiment, round, "test", True, accepted, shared))
    print(round, flush=True)
"""


def test_a_killed_writer_leaves_the_model_before_or_after(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"1\n"
        last = 0
        for _ in range(10):  # while it is being replaced, again and again
            found = load_published(tmp_path)
            assert (found.shared["items"] == found.round).all()
            assert found.round >= last
            last = found.round
        writer.kill()
    found = load_published(tmp_path)
    assert (found.shared["items"] == found.round).all()
    assert found.items == ["i0", "i1", "i2", "i3", "i4"]
    assert (found.site, found.threshold) == ("clinic-a", None)
    assert not np.any(found.keys)


def test_what_is_no_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no model has been published in"):
        load_published(tmp_path)
    path = published_file(tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"something else")
    with pytest.raises(RunError, match="is damaged"):
        load_published(tmp_path)
