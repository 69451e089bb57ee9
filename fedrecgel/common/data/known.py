"""The data sets known by name: where they come from, how they are laid out, what they must hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Column = str | int | None


@dataclass(frozen=True)
class Archive:
    """A zip file at its publisher, with its sha256 and the file to take from it."""

    url: str
    sha256: str
    member: str


@dataclass(frozen=True)
class KnownSet:
    """One published data set."""

    title: str
    page: str
    """Where a person finds it."""
    licence: str
    files: tuple[str, ...]
    """Names under which it may lie in ``$FEDRECGEL_DATA/<name>/``; the first is the documented one.
    """
    columns: Mapping[str, Column]
    """Positions (from 1) or names of the columns."""
    counts: tuple[int, int, int]
    """Documented rows, users, items."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Of the documented file, by name."""
    archive: Archive | None = None
    threshold: float | None = None
    """Applied when the user sets none: rows below it are no interactions."""
    file_order: bool = False
    """Whether the paper takes the order of the file as time."""


_MOVIELENS = "research use, no redistribution"
_STARS = {"user": 1, "item": 2, "rating": 3, "time": 4}

KNOWN: dict[str, KnownSet] = {
    "filmtrust": KnownSet(
        title="FilmTrust (Guo, Zhang, Yorke-Smith, IJCAI 2013)",
        page="https://guoguibing.github.io/librec/datasets.html",
        licence="research use, cite the paper",
        files=("ratings.txt",),
        columns={"user": 1, "item": 2, "rating": 3},
        counts=(35_497, 1_508, 2_071),
        sha256={"ratings.txt": "15bc987f1176d3d2145930dbd33ae312149d884f18f2f3aa66dda61cbfea2d56"},
    ),
    "lastfm-2k": KnownSet(
        title="HetRec 2011 Last.fm tag assignments",
        page="https://grouplens.org/datasets/hetrec-2011/",
        licence="non-commercial use",
        files=("ratings.dat", "user_taggedartists-timestamps.dat"),
        columns={"user": 1, "item": 2, "time": 4},
        counts=(185_650, 1_600, 12_454),
        sha256={"ratings.dat": "be03bb5b2b7275b9b14ba4028df5e6ae12ee5ce90ef8ad6d2908ac8fb5b87615"},
        archive=Archive(
            "https://files.grouplens.org/datasets/hetrec2011/hetrec2011-lastfm-2k.zip",
            "6738f48195667ff03caaab4d32ca9a3133d8cc026b7c3cdaf6ce1010e913c59c",
            "user_taggedartists-timestamps.dat",
        ),
    ),
    "amazon-video": KnownSet(
        title="Amazon Instant Video ratings, users with at least 5 (McAuley)",
        page="https://jmcauley.ucsd.edu/data/amazon/",
        licence="research use",
        files=("ratings.dat", "ratings_Amazon_Instant_Video.csv"),
        columns=_STARS,
        counts=(63_836, 8_072, 11_830),
        sha256={"ratings.dat": "a1292e4a4dba6c37be6ae5dc83d4404af96bf3eace4c8954e2f4e8360a3cdd76"},
    ),
    "qb-article": KnownSet(
        title="Tenrec QB-article",
        page="https://tenrec0.github.io/",
        licence="CC BY-NC 4.0, after accepting Tenrec's agreement",
        files=("QB-article.csv",),
        columns={"user": "user_id", "item": "item_id", "rating": "click"},
        counts=(348_736, 24_516, 7_355),
        threshold=1.0,
        file_order=True,
    ),
    "ml-100k": KnownSet(
        title="MovieLens 100K (GroupLens)",
        page="https://grouplens.org/datasets/movielens/100k/",
        licence=_MOVIELENS,
        files=("ratings.dat", "u.data"),
        columns=_STARS,
        counts=(100_000, 943, 1_682),
        sha256={
            "ratings.dat": "807b9ab64929525bfeac2a9045cf91df7017239b301fee472e4b47a69b6d6daf",
            "u.data": "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
        },
        archive=Archive(
            "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
            "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            "ml-100k/u.data",
        ),
    ),
    "ml-1m": KnownSet(
        title="MovieLens 1M (GroupLens)",
        page="https://grouplens.org/datasets/movielens/1m/",
        licence=_MOVIELENS,
        files=("ratings.dat",),
        columns=_STARS,
        counts=(1_000_209, 6_040, 3_706),
        archive=Archive(
            "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
            "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
            "ml-1m/ratings.dat",
        ),
    ),
}
