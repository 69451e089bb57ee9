"""Tenrec's QB-article, which nobody may pass on: a made file with its columns, from end to end."""

import numpy as np

from fedrecgel.cli import main
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.simulation.compare.report import Comparison

COLUMNS = (
    "user_id,item_id,click,gender,age,exposure_count,click_count,like_count,comment_count,"
    "read_percentage,item_score1,item_score2,category_second,category_first,item_score3,read,"
    "read_time,share,like,follow,favorite"
)


def write_qb_article(path, users=40, items=30):
    """Exposures, of which half are clicks; only these are interactions."""
    rng = np.random.default_rng(0)
    lines, clicks = [COLUMNS], {}
    for step in range(30):
        for user in range(users):
            item, click = int(rng.integers(items)), int(step % 2)
            rest = ",".join(str(value) for value in rng.integers(0, 100, 18))
            lines.append(f"{9000 + user},{700 + item},{click},{rest}")
            if click:
                clicks.setdefault(str(9000 + user), []).append(str(700 + item))
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
    return clicks


def test_qb_article_from_tenrecs_file_to_a_comparison(tmp_path, monkeypatch, capsys):
    clicks = write_qb_article(tmp_path / "sets" / "qb-article" / "QB-article.csv")
    monkeypatch.setenv("FEDRECGEL_DATA", str(tmp_path / "sets"))
    folder, out = tmp_path / "data", tmp_path / "out"
    assert main(["prepare", "qb-article", "--out", str(folder)]) == 0
    assert "documented 348,736" in capsys.readouterr().err
    data = Dataset.load(folder)
    assert data.name == "qb-article"
    for user, items in clicks.items():
        index = data.user_index(user)
        held = [data.validation_items[index], data.test_items[index]]
        known = [*data.train_of(index), *held]
        assert sorted(data.item_ids[known]) == sorted(set(items))
    asked = ["--algorithms", "fedmf,fedrecgel", "--references", "ease", "--seeds", "1"]
    asked += ["--budget", "1", "--rounds", "2", "--workers", "1", "--log", "none"]
    assert main(["compare", "--data", str(folder), "--out", str(out), *asked]) == 0
    rows = Comparison.open(out).values["data"][0]["rows"]
    assert {row["label"]: row["status"] for row in rows} == dict.fromkeys(
        ("popularity", "ease", "fedmf", "fedrecgel"), "done"
    )
    assert {row["evaluated"] for row in rows} == {40}
