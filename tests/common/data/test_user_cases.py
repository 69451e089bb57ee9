"""The user cases of one's own data, each run as its text says; every test names its case."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedrecgel.common.data import Dataset, prepare
from fedrecgel.common.errors import DataError, DataWarning

Prepare = Callable[..., Dataset]


@pytest.fixture
def made(tmp_path: Path) -> Prepare:
    """Return ``prepare`` of a text, bytes, or dictionary of parts."""
    count = iter(range(1_000))

    def make(
        content: str | bytes | dict[str, Any], name: str = "own.csv", **options: Any
    ) -> Dataset:
        number = next(count)
        folder = tmp_path / f"in{number}"
        folder.mkdir()
        parts = content if isinstance(content, dict) else {name: content}
        for part, text in parts.items():
            if isinstance(text, pa.Table):
                pq.write_table(text, folder / part)
            else:
                (folder / part).write_bytes(text if isinstance(text, bytes) else text.encode())
        source = folder if isinstance(content, dict) else folder / name
        options = {"min_interactions": 0} | options
        return prepare(source, tmp_path / f"out{number}", **options)

    return make


def report(data: Dataset) -> dict[str, Any]:
    return dict(data.manifest.report)


def rows_of(data: Dataset) -> set[tuple[str, str]]:
    table = pq.read_table(Path(str(data.path)) / "interactions.parquet").to_pydict()
    users, items = data.user_ids[table["user"]], data.item_ids[table["item"]]
    return set(zip(users.tolist(), items.tolist(), strict=True))


TWENTY = [(user, item, user + item) for user in range(1, 5) for item in range(11, 16)]


@pytest.mark.parametrize("separator", [",", "\t", ";", "::", " "])
@pytest.mark.parametrize("header", [None, "userId", "user_id", "uid", "UserID"])
def test_u040_separator_and_header(made: Prepare, separator: str, header: str | None) -> None:
    lines = [separator.join(map(str, row)) for row in TWENTY]
    head = [] if header is None else [separator.join([header, "item", "timestamp"])]
    data = made("\n".join(head + lines))
    assert rows_of(data) == {(str(u), str(i)) for u, i, _ in TWENTY}
    assert report(data)["first_row"] == {"user": "1", "item": "11", "time": "12"} or (
        header is None and report(data)["first_row"] == {"user": "1", "item": "11", "rating": "12"}
    )


def test_u040_a_wrong_guess_names_line_text_and_option(made: Prepare) -> None:
    lines = "\n".join(",".join(map(str, row)) for row in TWENTY)
    with pytest.raises(DataError, match=r"line 1 is '1,11,12'; set --separator"):
        made(lines, separator="tab")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8", "utf-16"])
def test_u041_an_item_called_beyonce(
    made: Prepare, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "C")
    data = made("user,item\na,Beyoncé\na,x\na,y\n".encode(encoding))
    assert data.item_ids.tolist() == ["Beyoncé", "x", "y"]
    assert pq.read_table(Path(str(data.path)) / "items.parquet")["item_id"][0].as_py() == "Beyoncé"


@pytest.mark.parametrize("header", ["user,item\n", ""])
def test_u042_a_byte_order_mark_makes_no_second_user(made: Prepare, header: str) -> None:
    data = made((header + "1,5\n1,6\n2,5\n").encode("utf-8-sig"))
    assert data.user_ids.tolist() == ["1", "2"]


def test_u044_float_and_missing_ids(made: Prepare) -> None:
    data = made("user,item\n12,7\n,8\n13.0,9\n12.0,9\n")
    assert data.user_ids.tolist() == ["12", "13"]
    assert report(data)["bad_rows"]["reasons"] == {"user id is empty": 1}
    assert "own.csv line 3" in report(data)["bad_rows"]["first"][0]["place"]
    with pytest.raises(DataError, match=r"own\.csv line 3: user id is empty"):
        made("user,item\n12,7\n,8\n13,9\n", strict=True)
    nulls = pa.table({"user": pa.array([12, None, 13], pa.int64()), "item": [7, 8, 9]})
    parts = made({"a.parquet": nulls, "b.csv": "user,item\n12.0,5\n"})
    assert parts.user_ids.tolist() == ["12", "13"]
    assert report(parts)["bad_rows"]["count"] == 1


def test_u045_ids_that_look_like_missing_values(made: Prepare) -> None:
    names = ["NA", "null", "None", "N/A", "true", "1e5", "nan"]
    data = made("user,item\n" + "".join(f"u,{name}\n" for name in names) + "u,\n")
    assert set(data.item_ids.tolist()) == set(names)
    assert report(data)["bad_rows"]["count"] == 1


def test_u046_very_large_and_negative_ids(made: Prepare) -> None:
    items = ["5", "1000000000", "9007199254740993", "9007199254740992"]
    data = made("user,item\n" + "".join(f"-1,{item}\n" for item in items))
    assert set(data.item_ids.tolist()) == set(items)
    assert data.num_items == 4
    assert data.user_ids.tolist() == ["-1"]


def test_u046_large_ids_in_json_lines(made: Prepare) -> None:
    lines = ['{"user": 1, "item": 9007199254740993}', '{"user": 1, "item": 9007199254740992}']
    data = made("\n".join([*lines, '{"user": 1, "item": 2.5}']), name="own.jsonl")
    assert set(data.item_ids.tolist()) == {"2.5", "9007199254740992", "9007199254740993"}


def test_u047_gappy_unsorted_ids_are_the_reindexed_file(made: Prepare) -> None:
    rows = [(3, 0, 1), (10, 9, 1), (7, 2, 4), (3, 2, 2), (10, 0, 9), (7, 0, 5), (3, 9, 3)]
    new_user, new_item = {3: 0, 7: 1, 10: 2}, {0: 0, 2: 1, 9: 2}
    header = "user,item,time\n"
    gappy = made(header + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    dense = made(header + "".join(f"{new_user[u]},{new_item[i]},{t}\n" for u, i, t in rows))
    assert gappy.user_ids.tolist() == ["3", "7", "10"]
    assert gappy.train_items.tolist() == dense.train_items.tolist()
    assert gappy.test_items.tolist() == dense.test_items.tolist() == [2, 0, 0]


def test_u049_a_cut_file_is_a_loud_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "filmtrust").mkdir()
    file = tmp_path / "filmtrust" / "ratings.txt"
    monkeypatch.setenv("FEDRECGEL_DATA", str(tmp_path))
    file.write_text("".join(f"{u} {i} 3\n" for u in range(1, 9) for i in range(1, 9)))
    with pytest.warns(DataWarning, match="this is not the documented filmtrust: rows 64"):
        data = prepare("filmtrust", tmp_path / "out")
    documented = data.manifest.source["documented"]
    assert isinstance(documented, dict)
    assert not documented["same_counts"]
    file.write_text("")
    with pytest.raises(DataError, match=r"ratings\.txt is empty"):
        prepare("filmtrust", tmp_path / "other")


@pytest.mark.realdata
def test_u049_1227_users_of_filmtrust_remain(shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "filmtrust" / "ratings.txt"
    assert prepare(file, tmp_path / "out").num_users == 1_227


def test_u050_users_with_one_to_five(made: Prepare) -> None:
    text = "user,item\n" + "".join(f"u{n},i{k}\n" for n in range(1, 6) for k in range(n))
    everyone = made(text)
    assert np.diff(everyone.train_offsets).tolist() == [1, 1, 1, 2, 3]
    assert (everyone.test_items >= 0).tolist() == [False, True, True, True, True]
    five = made(text, min_interactions=5)
    assert five.user_ids.tolist() == ["u5"]
    assert report(five)["users_below_minimum"] == 4
    assert "single pass" in str(five.manifest.rules["filter"])


def test_u051_no_times_say_so_and_do_not_depend_on_the_order(made: Prepare) -> None:
    lines = [f"{u},{i}" for u in range(9) for i in range(u, u + 6)]
    first = made("\n".join(["user,item", *lines]), seed=4)
    random.Random(1).shuffle(lines)
    assert made("\n".join(["user,item", *lines]), seed=4).hash == first.hash
    order = str(first.manifest.rules["order"])
    assert order == "no timestamps: held-out items drawn at random with seed 4"
    assert report(first)["leakage"] is None


def test_u053_equal_times_favour_no_item(made: Prepare) -> None:
    lines = [f"u{u:03d},{i},7" for u in range(300) for i in range(10)]
    data = made("\n".join(["user,item,time", *lines]))
    again = made("\n".join(["user,item,time", *reversed(lines)]))
    assert again.hash == data.hash
    counts = np.bincount(data.test_items, minlength=10)
    assert counts.min() >= 10  # 30 expected of each; binomial, below 10 once in 100,000
    assert report(data)["users_with_ties"] == 300


def test_u054_an_item_that_occurs_only_in_the_test(made: Prepare) -> None:
    text = "user,item,time\n" + "".join(f"u{u},i{k},{k}\n" for u in range(6) for k in range(4))
    data = made(text + "u5,X,99\n")
    assert data.num_items == 5
    assert data.item_ids[data.test_items[5]] == "X"
    split = data.manifest.statistics["split"]
    assert split["test_items_never_trained"] == 6  # i3 of five users, X of the sixth
    assert split["items_never_trained"] == 2


def test_u055_quotes_line_ends_and_ragged_lines(made: Prepare) -> None:
    lines = ["u,item,n", 'a,"Lock, Stock",1', "a,b,2,x,y", "a,c\x00,3", "b,d,4", ""]
    text = "\r\n".join([*lines, "b,e,5"])
    data = made(text, user_column="u")
    assert rows_of(data) == {("a", "Lock, Stock"), ("b", "d"), ("b", "e")}
    first = report(data)["bad_rows"]["first"]
    assert [row["place"].rsplit(" ", 1)[1] for row in first] == ["3", "4"]
    with pytest.raises(DataError, match=r"own\.csv line (3|4)"):
        made(text, user_column="u", strict=True)


RATED = "user,item,rating\na,p,5\na,q,1\na,r,0\nb,p,-1\nb,q,0\nc,p,4\nc,q,5\n"


def test_u056_ratings_with_and_without_a_threshold(made: Prepare) -> None:
    assert len(rows_of(made("user,item\na,p\nb,q\n"))) == 2
    plain, one, four = made(RATED), made(RATED, threshold=1), made(RATED, threshold=4)
    assert [data.manifest.rules["positive"] for data in (plain, one, four)] == [
        "every row",
        "rating >= 1",
        "rating >= 4",
    ]
    assert report(plain)["not_positive_kept"] == 3
    assert report(plain)["users_without_positives"] == 0
    assert rows_of(one) == {("a", "p"), ("a", "q"), ("c", "p"), ("c", "q")}
    assert [report(data)["below_threshold"] for data in (one, four)] == [3, 4]
    assert [report(data)["users_without_positives"] for data in (one, four)] == [1, 1]
    assert report(one)["not_positive_kept"] == 0


def test_u057_users_who_know_everything(made: Prepare) -> None:
    counts = {"A": 10, "B": 9, "C": 3}
    data = made("user,item\n" + "".join(f"{u},{i}\n" for u, n in counts.items() for i in range(n)))
    found = (data.test_candidates >= 0).sum(axis=1).tolist()
    assert found == [0, 1, 7]
    assert data.manifest.statistics["split"]["users_with_fewer_candidates"] == 3


def test_u059_parts_of_mixed_types_and_repeated_headers(made: Prepare) -> None:
    whole = pa.table({"user": [1, 2], "item": [10, 11]})
    text = pa.table({"user": ["1", "2"], "item": ["12", "10"]})
    data = made({"a.parquet": whole, "b.parquet": text})
    assert rows_of(data) == {("1", "10"), ("2", "11"), ("1", "12"), ("2", "10")}
    joined = made("user,item\n1,10\nuser,item\n2,11\n")
    assert report(joined)["repeated_headers"] == 1
    assert report(joined)["rows_read"] == 3
    assert joined.user_ids.tolist() == ["1", "2"]


def test_u059_parts_of_a_file_that_was_cut_have_one_header(made: Prepare) -> None:
    data = made({"x-aa.csv": "time,user,item\n1,u,p\n", "x-ab.csv": "2,u,q\n3,v,p\n"})
    assert rows_of(data) == {("u", "p"), ("u", "q"), ("v", "p")}
    assert report(data)["missing_times"] == 0


def test_u061_u062_candidates_are_distinct_and_unknown(made: Prepare) -> None:
    generator = random.Random(0)
    lines = [f"{u},{i}" for u in range(20) for i in generator.sample(range(150), 5 + u)]
    for options in ({}, {"split": "share", "share": 0.3}):
        data = made("\n".join(["user,item", *lines]), **options)
        known = rows_of(data)
        for user in range(data.num_users):
            for candidates in (data.validation_candidates[user], data.test_candidates[user]):
                real = candidates[candidates >= 0].tolist()
                assert len(set(real)) == len(real) == 99
                names = data.item_ids[real].tolist()
                assert not known & {(str(data.user_ids[user]), name) for name in names}
    assert "99 distinct items" in str(data.manifest.rules["candidates"])


def test_u063_nothing_in_the_data_tells_train_negatives_what_is_held_out(made: Prepare) -> None:
    """The arrays a device trains on are the same whichever of its items is held out last."""
    text = "user,item,time\n" + "".join(f"u,{i},{i}\n" for i in range(8))
    other = "v,8,1\nv,9,2\nv,10,3\nv,7,4\nv,6,5\n"
    data = made(text + other)
    swapped = made(text.replace("u,7,7", "u,9,7") + other)
    assert data.train_of(0).tolist() == swapped.train_of(0).tolist()
    assert data.num_items == swapped.num_items == 11


def test_u068_the_leaked_share_is_printed_and_a_split_by_time_has_none(made: Prepare) -> None:
    """An item appears on day 100; the test event of u1 is on day 50."""
    rows = [("u1", i, 10 * i) for i in range(6)] + [("u2", i, 60 + 10 * i) for i in range(5)]
    text = "user,item,day\n" + "".join(f"{u},i{i},{t}\n" for u, i, t in [*rows, ("u2", 9, 110)])
    data = made(text, time_column="day")
    leak = report(data)["leakage"]["leave-one-out"]
    # Test: u1 on day 50, u2 on 110. Train: u1 0..30, u2 60..90: half of it after day 50.
    assert (leak["leaked"], leak["test_events"], leak["share"]) == (1, 2, 0.5)
    assert leak["train_after"] == pytest.approx((4 / 8 + 0) / 2)
    assert leak["items_after"] == pytest.approx((1 / 7 + 0) / 2)
    later = made(text, time_column="day", split="time", cut=0.8)
    assert report(later)["leakage"]["time"]["leaked"] == 0
    assert report(later)["leakage"]["leave-one-out"]["leaked"] == 1


def test_u073_counts_hold_no_padding(made: Prepare) -> None:
    data = made("user,item\n" + "".join(f"{u},{i}\n" for u in (1, 2) for i in (1, 2, 3)) + "3,9\n")
    raw = data.manifest.statistics["raw"]
    assert (raw["users"], raw["items"], raw["interactions"]) == (3, 4, 7)
    assert raw["density"] == 7 / 12
    filtered = made("user,item\n1,1\n1,2\n3,9\n", min_interactions=2).manifest.statistics[
        "filtered"
    ]
    assert (filtered["users"], filtered["items"], filtered["density"]) == (1, 2, 1.0)
