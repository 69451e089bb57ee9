"""Data sets known by name, without a network: made files and a made publisher."""

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from fedrecgel.common.data import download, prepare
from fedrecgel.common.data.known import KNOWN, Archive
from fedrecgel.common.errors import DataError, DataWarning


@pytest.fixture(autouse=True)
def _no_publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point data folder, cache and every publisher into the temporary folder."""
    monkeypatch.setenv("FEDRECGEL_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, known in KNOWN.items():
        if known.archive is not None:
            archive = replace(known.archive, url=(tmp_path / "nowhere.zip").as_uri())
            monkeypatch.setitem(KNOWN, name, replace(known, archive=archive))


def put(tmp_path: Path, name: str, file: str, text: str) -> None:
    folder = tmp_path / "own" / name
    folder.mkdir(parents=True)
    (folder / file).write_text(text)


def publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, member: str = "ml-100k/u.data"
) -> Path:
    """Publish an archive of a made ml-100k; its documented figures are those of the text."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr(member, text)
    path = tmp_path / "published.zip"
    path.write_bytes(memory.getvalue())
    sha256 = hashlib.sha256(memory.getvalue()).hexdigest()
    made = Archive(path.as_uri(), sha256, "ml-100k/u.data")
    rows = text.count("\n")
    known = replace(KNOWN["ml-100k"], archive=made, counts=(rows, 1, rows))
    monkeypatch.setitem(KNOWN, "ml-100k", known)
    return path


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_set_that_is_not_here_says_where_to_get_it(tmp_path: Path, name: str) -> None:
    known = KNOWN[name]
    with pytest.raises(DataError) as caught:
        prepare(name, tmp_path / "data")
    message = str(caught.value)
    assert known.page in message
    assert known.licence in message
    assert str(tmp_path / "own" / name / known.files[0]) in message
    assert "\n" not in message


def test_another_file_is_a_loud_warning_and_stands_in_the_manifest(tmp_path: Path) -> None:
    put(tmp_path, "filmtrust", "ratings.txt", "".join(f"1 {item} 4\n" for item in range(9)))
    with pytest.warns(DataWarning, match=r"not the documented filmtrust: rows 9 \(documented 35,4"):
        data = prepare("filmtrust", tmp_path / "data")
    documented = data.manifest.source["documented"]
    assert isinstance(documented, dict)
    assert documented["same_file"] is documented["same_counts"] is False
    assert documented["found"] == {"rows": 9, "users": 1, "items": 9}


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "filmtrust", "ratings.txt", "")
    with pytest.raises(DataError, match=r"ratings.txt is empty"):
        prepare("filmtrust", tmp_path / "data")


def test_qb_article_takes_clicks_and_the_papers_order(tmp_path: Path) -> None:
    header = "user_id,item_id,click,follow,like,share,gender\n"
    rows = "".join(f"1,{item},{int(item != 4)},0,0,0,2\n" for item in (9, 3, 4, 8, 1, 7))
    put(tmp_path, "qb-article", "QB-article.csv", header + rows)
    with pytest.warns(DataWarning, match="not the documented qb-article"):
        data = prepare("qb-article", tmp_path / "data", protocol="paper")
    assert data.item_ids[data.train_of(0)].tolist() == ["9", "3", "8", "1"]
    assert data.item_ids[data.test_items].tolist() == ["7"]
    assert data.manifest.rules["positive"] == "rating >= 1"
    assert data.manifest.rules["order"] == "order of the file, taken as time"
    with pytest.warns(DataWarning):
        plain = prepare("qb-article", tmp_path / "plain")
    assert str(plain.manifest.rules["order"]).startswith("no timestamps")


def test_a_threshold_needs_ratings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lastfm-2k has no ratings"):
        prepare("lastfm-2k", tmp_path / "data", threshold=3)


def test_a_download_is_checked_unpacked_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"7\t{item}\t3\t{item}\n" for item in range(1, 9))
    path = publish(tmp_path, monkeypatch, text)
    data = prepare("ml-100k", tmp_path / "data")
    assert data.item_ids[data.test_items].tolist() == ["8"]
    path.unlink()
    assert prepare("ml-100k", tmp_path / "again").hash == data.hash
    kept = tmp_path / "cache" / "fedrecgel" / "ml-100k"
    assert [file.name for file in kept.iterdir()] == ["u.data"]


@pytest.mark.parametrize("damage", ["cut", "changed", "no archive", "no member", "too large"])
def test_a_bad_download_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    member = "other" if damage == "no member" else "ml-100k/u.data"
    path = publish(tmp_path, monkeypatch, "1\t2\t3\t4\n" * 50, member)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "changed":
        path.write_bytes(path.read_bytes() + b"x")
    elif damage == "no archive":
        path.write_bytes(b"<html>moved</html>")
    elif damage == "too large":
        monkeypatch.setattr(download, "LARGEST", 10)
    with pytest.raises(DataError, match=r"published.zip failed .* get MovieLens 100K"):
        prepare("ml-100k", tmp_path / "data")
    assert not list((tmp_path / "cache" / "fedrecgel" / "ml-100k").iterdir())
    assert not (tmp_path / "data").exists()


def test_a_misspelt_name_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file 'filmtrst'.*did you mean filmtrust"):
        prepare("filmtrst", tmp_path / "data")
    with pytest.raises(DataError, match="known names are filmtrust, "):
        prepare("zzz.csv", tmp_path / "data")
