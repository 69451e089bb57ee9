"""Runs compared user by user, to tell a difference from luck.

The ranks that every run keeps of its test users (``RUN/private/ranks.npy``) are paired by user. So
the question is about these trained models and this kind of user; how much another seed of training
would have changed is a question for several runs with other seeds.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrecgel.client.store import load_ranks
from fedrecgel.common.errors import RunError
from fedrecgel.common.metrics import RankCounts, metric
from fedrecgel.common.resampling import holm, paired_test, sign_flip_p
from fedrecgel.server.run_folder import CONFIG, RESULT, RunFolder

__all__ = ["DEFAULT_METRICS", "compare_runs", "difference_table"]

DEFAULT_METRICS = ("hr@10", "ndcg@10")
_RANKINGS = ("sampled", "full")


def compare_runs(
    base: str | Path, others: Sequence[str | Path], names: Iterable[str] = DEFAULT_METRICS
) -> dict[str, Any]:
    """Test the difference of each of ``others`` to ``base`` on the test items.

    Returns
    -------
    dict
        ``base``, ``users``, ``data`` and ``runs``: for each run, ranking and metric what
        `paired_test` returns with ``p`` of the sign-flip test, and ``p_holm``, adjusted over the
        runs that are compared with the base (each metric for itself).

    Raises
    ------
    RunError
        When a folder is no finished run, has no ranks, or is a run on other data.
    """
    chosen = tuple(names)
    data, reference = _load(Path(base))
    loaded = [_load(Path(path)) for path in others]
    for path, (other, _) in zip(others, loaded, strict=True):
        if other["hash"] != data["hash"]:
            raise RunError(
                f"{path} is a run on other data ({other['name']}, {other['hash'][:12]}) than {base}"
                f" ({data['name']}, {data['hash'][:12]}); compare runs on the same prepared folder"
            )
    runs: list[dict[str, Any]] = [{"run": str(path)} for path in others]
    for ranking in _RANKINGS:
        for entry, (_, ranks) in zip(runs, loaded, strict=True):
            if not np.array_equal(ranks[ranking].users, reference[ranking].users):
                raise RunError(
                    f"{entry['run']} measured {len(ranks[ranking])} users, {base} "
                    f"{len(reference[ranking])}, not the same ones; were some nodes absent?"
                )
            entry[ranking] = {n: _cell(ranks[ranking], reference[ranking], n) for n in chosen}
        for name in chosen:
            adjusted = holm([entry[ranking][name]["p"] for entry in runs])
            for entry, p in zip(runs, adjusted, strict=True):
                entry[ranking][name]["p_holm"] = p
    users = len(reference["full"])
    return {"base": str(base), "data": data, "users": users, "split": "test", "runs": runs}


def _cell(run: RankCounts, base: RankCounts, name: str) -> dict[str, float | None]:
    a, b = metric(name, run), metric(name, base)
    means = {"run": float(a.mean()), "base": float(b.mean())} if len(a) else {}
    return {**means, **paired_test(a, b), "p": sign_flip_p(a - b)}


def _load(path: Path) -> tuple[dict[str, str], dict[str, RankCounts]]:
    folder = RunFolder.open(path)
    told = folder.read_json(CONFIG)["data"]
    folder.read_json(RESULT)  # a run that did not finish has none
    try:
        ranks = load_ranks(folder.private)
    except (OSError, ValueError):
        raise RunError(
            f"{folder.private} holds no ranks of users: they were removed, or the run was made on "
            "other machines; run it again here with fedrecgel simulate"
        ) from None
    users = np.flatnonzero(ranks[:, 0] >= 0)
    kept = {
        "sampled": RankCounts(ranks[users, 0], ranks[users, 1], users),
        "full": RankCounts(ranks[users, 2], ranks[users, 3], users),
    }
    return {"name": told["name"], "hash": told["hash"]}, kept


def difference_table(report: dict[str, Any]) -> str:
    """Return the text of `compare_runs`, about 100 columns wide."""
    several = len(report["runs"]) > 1
    lines = [
        f"test items of {report['data']['name']}, {report['users']:,} users, paired",
        f"base: {report['base']}",
    ]
    columns = ("base", "run", "difference", "95 % interval", "changed", "effect", "p")
    widths = (9, 9, 12, 22, 9, 8, 9)
    header = "".join(f"{c:>{w}}" for c, w in zip(columns, widths, strict=True))
    for entry in report["runs"]:
        lines += ["", entry["run"], f"{'':<17}{header}" + (f"{'p (Holm)':>10}" if several else "")]
        for ranking in _RANKINGS:
            for name, cell in entry[ranking].items():
                row = "".join(f"{c:>{w}}" for c, w in zip(_cells(cell), widths, strict=True))
                more = f"{_number(cell['p_holm'], '.4f'):>10}" if several else ""
                lines.append(f"{f'{ranking} {name}':<17}{row}{more}")
    lines += [
        "",
        "difference: run minus base; changed: share of users; effect: mean / standard deviation;",
        "p: sign-flip test. It is about these models: seeds of training are not in it.",
    ]
    if several:
        lines.append(f"Holm: adjusted for {len(report['runs'])} runs against the base, per metric")
    return "\n".join(lines)


def _cells(cell: dict[str, float | None]) -> tuple[str, ...]:
    interval = "-"
    if cell["low"] is not None:
        interval = f"{cell['low']:+.4f} to {cell['high']:+.4f}"
    return (
        _number(cell.get("base"), ".4f"),
        _number(cell.get("run"), ".4f"),
        _number(cell["value"], "+.4f"),
        interval,
        _number(cell["changed"], ".1%"),
        _number(cell["effect"], "+.3f"),
        _number(cell["p"], ".4f"),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
