"""The published data sets: documented counts, and popularity where others have measured it."""

from pathlib import Path

import numpy as np
import pytest

from fedrecgel.common.data import Dataset, prepare

pytestmark = pytest.mark.realdata

DEFAULT = {
    # users, items, interactions; popularity HR@10 and NDCG@10 in per cent
    "filmtrust": ((1_227, 2_059, 34_886), (91.5, 82.8)),
    "ml-100k": ((943, 1_682, 100_000), (41.9, 23.5)),
    "amazon-video": ((8_072, 11_830, 63_836), (60.0, 39.3)),
    "lastfm-2k": ((1_222, 12_274, 69_595), (51.2, 32.7)),
}
PAPER = {
    "filmtrust": ((1_227, 2_059, 34_889), (91.5, 82.4)),
    "ml-100k": ((943, 1_682, 100_000), (46.6, 26.0)),
    "amazon-video": ((8_072, 11_830, 63_836), (62.8, 41.0)),
    "lastfm-2k": ((1_600, 12_454, 185_650), (60.6, 42.6)),
}
RAW = {
    "filmtrust": (1_508, 2_071, 35_497),
    "ml-100k": (943, 1_682, 100_000),
    "amazon-video": (8_072, 11_830, 63_836),
    "lastfm-2k": (1_600, 12_454, 185_650),
}


@pytest.fixture(autouse=True)
def _folder(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRECGEL_DATA", str(shared_data))


def popularity(data: Dataset) -> tuple[float, float]:
    """HR@10 and NDCG@10 in per cent of ranking by train counts, ties by expectation."""
    users = data.test_items >= 0
    score = data.train_counts[data.test_candidates[users]]
    own = data.train_counts[data.test_items[users]][:, None]
    above, equal = (score > own).sum(1), (score == own).sum(1)
    gains = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, 12)))])
    low, high = np.minimum(above, 10), np.minimum(above + equal + 1, 10)
    hits = (high - low) / (equal + 1)
    ndcg = (gains[high] - gains[low]) / (equal + 1)
    return 100 * float(hits.mean()), 100 * float(ndcg.mean())


def counts(data: Dataset, kind: str) -> tuple[object, ...]:
    row = data.manifest.statistics[kind]
    return row["users"], row["items"], row["interactions"]


@pytest.mark.parametrize("name", sorted(DEFAULT))
def test_default_protocol(tmp_path: Path, name: str) -> None:
    data = prepare(name, tmp_path / "data")
    expected, popular = DEFAULT[name]
    assert counts(data, "raw") == RAW[name]
    assert counts(data, "filtered") == expected
    assert popularity(data) == pytest.approx(popular, abs=1.8)
    data.verify()


@pytest.mark.parametrize("name", sorted(PAPER))
def test_paper_protocol(tmp_path: Path, name: str) -> None:
    data = prepare(name, tmp_path / "data", protocol="paper")
    expected, popular = PAPER[name]
    assert counts(data, "filtered") == expected
    assert popularity(data) == pytest.approx(popular, abs=1.2)


def test_filmtrust_has_three_duplicate_pairs_all_of_one_user(tmp_path: Path) -> None:
    data = prepare("filmtrust", tmp_path / "data")
    assert data.manifest.report["duplicates_merged"] == 3
    assert data.manifest.report["users_below_minimum"] == 281


def test_two_thirds_of_the_papers_lastfm_test_items_are_in_the_train_set(tmp_path: Path) -> None:
    data = prepare("lastfm-2k", tmp_path / "data", protocol="paper")
    seen = [data.test_items[u] in data.train_of(u) for u in range(data.num_users)]
    assert 100 * np.mean(seen) == pytest.approx(62.75, abs=0.1)


def test_amazon_items_that_occur_only_in_the_papers_test(tmp_path: Path) -> None:
    data = prepare("amazon-video", tmp_path / "data", protocol="paper")
    assert data.manifest.statistics["split"]["test_items_never_trained"] == 775
