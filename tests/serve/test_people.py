"""Who is at the site, what they have, and what new items are worth."""

from pathlib import Path

import numpy as np
import torch

from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.common.data.read import read_interactions
from fedrecgel.serve.people import People


def read(tmp_path: Path, text: str) -> People:
    file = tmp_path / "own.csv"
    file.write_text("user,item\n" + text)
    return People.of_rows(read_interactions(file), ["a", "b", "c", "d"])


def test_people_of_a_data_set_have_all_their_items() -> None:
    data = make_dataset([[0, 1], [2]], validation=[2, 0], test=[3, 1], num_items=5)
    people = People.of_dataset(data)
    assert people.items_of(0).tolist() == [0, 1, 2, 3]
    assert people.items_of(1).tolist() == [0, 1, 2]
    assert people.popularity.tolist() == [2, 2, 2, 1, 0]
    assert people.position("u1") == 1
    assert people.position("nobody") is None


def test_items_outside_the_catalogue_stand_behind_it(tmp_path: Path) -> None:
    people = read(tmp_path, "x,new\nx,b\nx,b\ny,b\ny,a\nz,new\n")
    assert people.item_ids == ["a", "b", "c", "d", "new"]
    assert people.num_items == 4
    assert people.items_of(0).tolist() == [1, 4]
    # A pair counts once; what only the site knows is nothing to fit to.
    assert people.popularity.tolist() == [1, 2, 0, 0, 2]
    assert people.interactions(0).items.tolist() == [1]
    assert people.interactions(2).items.tolist() == []


def test_a_new_item_is_worth_what_items_of_its_popularity_are(tmp_path: Path) -> None:
    # Users of a, b, c, d: 1, 2, 0, 0. "new" has two as b has; "rare" one as a; "hit" four: b is
    # nearest.
    rows = "x,b\ny,b\ny,a\nx,new\ny,new\nx,rare\n" + "".join(f"{u},hit\n" for u in "vwxy")
    people = read(tmp_path, rows)
    scores = people.with_new(torch.tensor([1.0, 5.0, -3.0, -4.0]))
    found = dict(zip(people.item_ids, scores.tolist(), strict=True))
    assert found == {"a": 1.0, "b": 5.0, "c": -3.0, "d": -4.0, "new": 5.0, "rare": 1.0, "hit": 5.0}


def test_items_of_one_popularity_share_their_mean(tmp_path: Path) -> None:
    people = read(tmp_path, "x,a\nx,b\nx,c\nx,d\ny,new\n")
    assert people.with_new(torch.tensor([1.0, 2.0, 3.0, 6.0]))[-1] == 3.0


def test_without_new_items_scores_are_as_they_are() -> None:
    data = make_dataset([[0], [1]], validation=[-1, -1], test=[-1, -1], num_items=3)
    scores = torch.tensor([1.0, 2.0, np.pi])
    assert People.of_dataset(data).with_new(scores) is scores
