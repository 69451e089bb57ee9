"""``fedrecgel data inspect`` and what it reports."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecgel.cli import main
from fedrecgel.common.data.distributions import describe_counts, gini
from fedrecgel.common.data.inspect import inspect
from fedrecgel.common.data.prepare import prepare

DIRTY = "\n".join(
    [
        "uid;Product;stars;day",
        *(f"{u};p{i};{i};{1_704_067_200 + 86_400 * i}" for u in range(6) for i in range(1, 7)),
        "0;p1;5;1704067200",
        "7;p1;0;1704067200",
        ";p1;0;1704067200",
        "7;p2;1",
        "7;P2;1;1704067200000",
        "uid;Product;stars;day",
    ]
)


@pytest.fixture
def dirty(tmp_path: Path) -> Path:
    file = tmp_path / "dirty.csv"
    file.write_text(DIRTY)
    return file


def problems(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["what"]: entry for entry in found["problems"]}


def test_everything_odd_has_a_count_a_place_and_a_flag(dirty: Path) -> None:
    found = problems(inspect(dirty).report)
    assert all(entry["count"] >= 1 and entry["flag"] for entry in found.values())
    empty = found["rows dropped: user id is empty"]
    assert empty["places"] == [f"{dirty} line 40: ';p1;0;1704067200'"]
    assert "--user-column" in empty["flag"]
    assert found["rows dropped: 3 fields instead of 4"]["places"][0].endswith("41: '7;p2;1'")
    assert found["header lines repeated among the rows"]["count"] == 1
    assert found["rows that repeat a user and an item: merged, the latest stays"]["count"] == 1
    assert found["rows with a rating of 0 or less, counted as interactions"]["count"] == 1
    assert found["users with fewer than 5 items: left out"]["count"] == 1
    capitals = found["items whose ids differ from another only in capitals: kept apart"]
    assert capitals["count"] == 1
    mixed = found["times look like milliseconds among seconds"]
    assert (mixed["count"], mixed["places"]) == (1, [f"{dirty} line 42: 1704067200000"])


def test_figures_by_hand(dirty: Path) -> None:
    report: Any = inspect(dirty).report
    assert report["rows"] == 39
    assert (report["pairs"]["users"], report["pairs"]["items"]) == (7, 7)
    assert report["pairs"]["interactions"] == 38
    assert report["pairs"]["density"] == 38 / 49
    assert report["activity"]["least"] == 2
    assert report["popularity"]["most"] == 7
    assert report["reading"]["columns"] == {
        "user": "uid",
        "item": "Product",
        "rating": "stars",
        "time": "day",
    }
    times = report["reading"]["times"]
    assert (times["unit"], times["first"], times["day_only"]) == ("s", "2024-01-01", True)
    assert "97.4 % of the times lie between 1980 and 2100" in times["evidence"]


@pytest.mark.parametrize(
    ("values", "unit", "evidence"),
    [
        ([1_704_067_200, 1_704_153_600], "s", "seconds since 1970"),
        ([1_704_067_200_000, 1_704_153_600_500], "ms", "milliseconds since 1970"),
        ([1_704_067_200_000_000, 1], "us", "microseconds since 1970: so read, 50 %"),
        ([1_704_067_200_000_000_000] * 2, "ns", "2024-01-01 to 2024-01-01"),
        ([20240101, 20231231], "yyyymmdd", "(2023-12-31 to 2024-01-01)"),
        (["2024-01-01", "2024-01-02"], "ns", "written as dates"),
        ([5, 17], None, "numbers of no known unit; 5 to 17: only their order counts"),
        (["", ""], None, "no times"),
    ],
)
def test_the_unit_of_times(tmp_path: Path, values: list[Any], unit: str, evidence: str) -> None:
    file = tmp_path / "x.csv"
    file.write_text("user,item,time\n" + "".join(f"u,{k},{v}\n" for k, v in enumerate(values)))
    report: Any = inspect(file).report
    assert report["reading"]["times"]["unit"] == unit
    assert evidence in report["reading"]["times"]["evidence"]


def test_gini_and_quantiles_by_hand() -> None:
    assert gini(np.array([2, 2])) == 0.0
    assert gini(np.array([1, 3])) == pytest.approx(0.25)
    found = describe_counts(np.arange(1, 101))
    assert (found["p10"], found["p50"], found["p99"], found["most"]) == (10, 50, 99, 100)
    assert found["top"] == pytest.approx(100 / 5_050)


def test_a_clean_file_has_nothing_odd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{u},{i},{1_700_000_000 + 60 * i}" for u in range(5) for i in range(200)]
    rows = [row for k, row in enumerate(rows) if k % 3]
    (tmp_path / "x.csv").write_text("\n".join(["user,item,time", *rows]))
    command = ["data", "inspect", str(tmp_path / "x.csv"), "--num-candidates", "9"]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert re.search(r"items with fewer than 5 users: kept  \[--min-item-interactions\]", output)
    assert "5 users x 200 items" in output


def test_text_json_and_picture(
    dirty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "inspect", str(dirty)]) == 0
    text = capsys.readouterr().out
    assert "read as: separator ';', with header, utf-8" in text
    assert "dirty.csv line 40: ';p1;0;1704067200'" in text
    pictures = [tmp_path / "one.png", tmp_path / "two.png"]
    for picture in pictures:
        assert main(["data", "inspect", str(dirty), "--json", "--picture", str(picture)]) == 0
        found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["format_version"]) == ("fedrecgel-inspection", 1)
    assert pictures[0].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_a_refusal_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.csv").write_text("\n\n")
    for command in (
        ["data", "inspect", str(tmp_path / "empty.csv")],
        ["data", "inspect", "nowhere.csv"],
        ["data", "inspect", __file__, "--strict", "--separator", "tab"],
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1


def test_mostly_bad_rows_are_still_described(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("user,item\na,b\n,c\n,d\n,e\n")
    assert problems(inspect(file).report)["rows dropped: user id is empty"]["count"] == 3


def test_prepare_says_the_same(dirty: Path, tmp_path: Path) -> None:
    seen: Any = inspect(dirty).report
    made: Any = prepare(dirty, tmp_path / "out").manifest.report
    assert {key: made[key] for key in seen["reading"]} == seen["reading"]


@pytest.mark.realdata
def test_published_sets(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRECGEL_DATA", str(shared_data))
    found: Any = inspect("filmtrust").report
    assert found["duplicates"] == {"rows": 3, "users": 1}
    assert found["users_below_5"] == 281
    assert found["source"]["documented"]["same_counts"]
