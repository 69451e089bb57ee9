"""One user's own model in a file (U026)."""

from pathlib import Path

import pytest

from fedrecgel import PersonalModel, Result, prepare, simulate
from fedrecgel.cli import main
from fedrecgel.common.errors import DataError, RunError


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("personal")
    data = prepare("synthetic", folder / "data", users=100, items=120)
    return simulate(data, folder / "run", rounds=3, evaluate_every=1, log="none")


def test_an_exported_user_scores_items_as_in_the_run(result: Result, tmp_path: Path) -> None:
    user, file = str(result.data.user_ids[3]), tmp_path / "me.safetensors"
    listed = result.recommend(user, k=5)
    assert main(["export", "--run", str(result.path), "--user", user, "--out", str(file)]) == 0
    model = PersonalModel.load(file)
    scores = model.score([item.item for item in listed])
    assert scores == pytest.approx([item.score for item in listed], rel=1e-6)
    assert model.private.keys() == {"user", "adam_mean", "adam_square", "adam_step"}
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(DataError, match="no item 'nothing' among the 120 items"):
        model.score(["nothing"])


def test_a_file_that_is_no_model_or_is_there_already_is_one_line(
    result: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "me"
    file.write_text("something else")
    with pytest.raises(RunError, match="is not a personal model"):
        PersonalModel.load(file)
    words = ["export", "--run", str(result.path), "--user", "u1", "--out", str(file)]
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert file.read_text() == "something else"
