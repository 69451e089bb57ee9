"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of published data sets, one subfolder each; skip where there is none.

    It is ``$FEDRECGEL_DATA`` or ``../shared/data`` beside the repository. With
    ``FEDRECGEL_REQUIRE_REAL_DATA=1`` (CI) its absence is a failure.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FEDRECGEL_DATA") or beside)
    if not folder.is_dir():
        message = f"no data sets in {folder}: set FEDRECGEL_DATA to their folder"
        if os.environ.get("FEDRECGEL_REQUIRE_REAL_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return folder
