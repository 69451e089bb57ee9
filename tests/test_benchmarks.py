"""The benchmark runs and writes what others read; nothing here is timed."""

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedrecgel import prepare
from fedrecgel.common.algorithms.registry import make_algorithm, make_config

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports a module of ``benchmarks``, which is not installed."""
    monkeypatch.syspath_prepend(ROOT)
    threads = torch.get_num_threads()
    yield lambda name: importlib.import_module(f"benchmarks.{name}")
    torch.set_num_threads(threads)


def test_every_watched_function_exists(bench: Any) -> None:
    clock = bench("clock")
    for name in clock.NAMES:
        holder, attribute = clock._find(name)
        assert callable(getattr(holder, attribute)), name


def test_the_clock_charges_each_part_without_the_parts_inside_it(bench: Any) -> None:
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    clock = bench("clock").Clock(lambda: next(times))
    with clock.part("outer"), clock.part("inner"):
        pass
    assert clock.lap() == {"outer": 1.0 + 3.0, "inner": 2.0}


def test_the_clock_puts_everything_back(bench: Any) -> None:
    from fedrecgel.client import app

    before = app.train
    with bench("clock").Clock().installed():
        assert app.train is not before
    assert app.train is before


@pytest.mark.slow
def test_a_tiny_benchmark_writes_what_others_read(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    main, speed, scaling = (bench(name) for name in ("__main__", "speed", "scaling"))
    monkeypatch.setattr(scaling, "apart", lambda work, *arguments: work(*arguments))
    monkeypatch.setattr(
        speed, "measure_processes", lambda sets, rounds: dict.fromkeys(sets, float("nan"))
    )
    assert main.main(["--tiny", "--out", str(tmp_path)]) == 0
    figures = json.loads((tmp_path / "bench.json").read_text())
    assert figures["machine"].keys() >= {"processor", "cores", "python", "torch", "flwr"}
    assert len(figures["sets"]) == 2
    for name in figures["sets"]:
        assert figures["updates_per_s"][name]["loop"] > 0
        assert figures["updates_per_s"][name]["block"] > 0
        assert 0 < figures["gemm_share"][name] < 1
        whole = figures["sets"][name]["neumf"]["nodes_16"]
        assert sum(whole["split_s"].values()) == pytest.approx(whole["round_s"], rel=1e-6)
    assert {row["size"] for row in figures["growth"]["items"]} == {1_000}
    assert len(figures["memory"]["runs"]) == 2
    printed = capsys.readouterr().out
    assert figures["machine"]["torch"] in printed
    assert printed.strip() in (tmp_path / "bench.md").read_text()
    assert (tmp_path / "bench.png").stat().st_size > 0


def test_the_page_of_reproductions_shows_what_is_missing_as_missing(bench: Any) -> None:
    page = bench("reproduction_page").page
    chosen = {"round": 7.0, "hr@10": 12.34, "ndcg@10": 5.66}
    some = page({"fedmf-clean": {"ways": {"own": chosen}}})
    assert "| FedMF | 65.15 / 39.38 [2] | - | 12.3 / 5.7 (round 7) |" in some
    assert "| FedMF | 65.15 / 39.38 [2] | - | - |" in page({})


def test_the_plain_algorithm_learns_what_its_users_have(bench: Any, tmp_path: Path) -> None:
    data = prepare("synthetic", tmp_path / "data", users=20, items=40, interactions=8)
    rounds = list(bench("plain").train_plain(data, leaky=True, rounds=10, seed=0))
    assert len(rounds) == 10
    has = torch.zeros(data.num_users, data.num_items, dtype=torch.bool)
    held = torch.zeros_like(has)
    for user in range(data.num_users):
        has[user, data.train_of(user).tolist()] = True
        held[user, [int(data.validation_items[user]), int(data.test_items[user])]] = True
    own = rounds[-1]["own"]
    assert own[has].mean() > own[held].mean() > own[~has & ~held].mean()  # only these are negatives
    assert rounds[-1]["global"].shape == (data.num_users, data.num_items)


def test_a_reproduction_trains_both_ways(bench: Any, tmp_path: Path) -> None:
    """On an invented data set: with the network and without, both ways of drawing negatives."""
    reproduction = bench("reproduction")
    data = prepare("synthetic", tmp_path / "data", users=20, items=40, interactions=8)
    algorithm = make_algorithm(make_config("pfedrec", {"fraction": 1.0}), data.num_items)
    for leaky in (False, True):
        samples = reproduction.interactions(data, leaky=leaky)
        together = reproduction.train_together(algorithm, data, samples, 2)
        assert list(together) == ["own", "global", "own, last download"]
        alone = reproduction.train_alone(algorithm, data, samples, 2)
        best = reproduction.choose(alone["own"])
        assert best["round"] in (1, 2)
        assert 0 <= best["hr@10"] <= 100
        # Before the first answer of the server both trained the same tables, row by row.
        assert together["own, last download"][0] == alone["own"][0]
