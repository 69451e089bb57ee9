"""The figures as text, as a table for the repository, and as a plot."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.clock import PARTS

Figures = Mapping[str, Any]
GIB = 2**30


def lines(figures: Figures) -> list[str]:
    """All tables in Markdown."""
    text = [_head(figures), "", *_speed(figures), "", *_split(figures), "", *_gates(figures)]
    if "growth" in figures:
        text += ["", *_growth(figures)]
    return text


def write(figures: Figures, folder: Path) -> None:
    """Write ``bench.json``, ``bench.md`` and ``bench.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    (folder / "bench.md").write_text("# Benchmark\n\n" + "\n".join(lines(figures)) + "\n")
    _plot(figures, folder / "bench.png")


def write_page(out: Path, page: str, figures: object) -> None:
    """Print a page, and write it as ``OUT.md`` and what it says as ``OUT.json``."""
    print(page)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".md").write_text(page, encoding="utf-8")
    out.with_suffix(".json").write_text(json.dumps(figures, indent=2) + "\n")


def _head(figures: Figures) -> str:
    m = figures["machine"]
    return (
        f"{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['system']}; Python "
        f"{m['python']}, torch {m['torch']}, numpy {m['numpy']}, flwr {m['flwr']}. "
        f"{figures['date']}, {figures['seconds']:.0f} s, load {m['load']} before the start. "
        f"One large matrix product: {figures['gemm_rate'] / 1e9:.0f} GFLOP/s on one thread. One "
        "thread means CPU seconds; two threads and two processes mean seconds on the wall."
    )


def _speed(figures: Figures) -> list[str]:
    rows = [
        "| data | scorer | samples a user | block | loop | two threads | two processes | share of "
        "matrix products | evaluation, in rounds of 10 % | Flower, 16 nodes |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for name, found in figures["sets"].items():
        for scorer in ("neumf", "dot"):
            f = found[scorer]
            share = f"{found['gemm_share']:.0%}" if scorer == "neumf" else ""
            pair = f"{figures['two_processes'][name]:,.0f}" if scorer == "neumf" else ""
            rows.append(
                f"| {name} | {scorer} | {found['samples_per_user']:.0f} "
                f"| {f['block']['updates_per_s']:,.0f} | {f['loop']['updates_per_s']:,.0f} "
                f"| {f['two_threads']['updates_per_s']:,.0f} | {pair} | {share} "
                f"| {f['evaluation_in_rounds']:.2f} | {f['nodes_16']['flower_share']:.0%} |"
            )
    return ["User updates a second, both radii 0.02, 10 % of the users a round.", "", *rows]


def _split(figures: Figures) -> list[str]:
    rows = [
        "Milliseconds of a round with 16 nodes, one thread.",
        "",
        "| data | scorer | " + " | ".join(PARTS) + " | round |",
        "| --- | --- |" + " --: |" * (len(PARTS) + 1),
    ]
    for name, found in figures["sets"].items():
        for scorer in ("neumf", "dot"):
            f = found[scorer]["nodes_16"]
            cells = [f"{1e3 * f['split_s'][part]:.1f}" for part in PARTS]
            rows.append(f"| {name} | {scorer} | {' | '.join(cells)} | {1e3 * f['round_s']:.1f} |")
    return rows


def _gates(figures: Figures) -> list[str]:
    rows = ["| gate | wanted | found | |", "| --- | --: | --: | --- |"]
    for gate in figures["gates"]:
        met = "met" if gate["met"] else "MISSED"
        rows.append(f"| {gate['what']} | {gate['wanted']} | {gate['found']} | {met} |")
    extra = []
    if "nodes" in figures:
        nodes = ", ".join(f"{n} nodes {v['round_s']:.2f} s" for n, v in figures["nodes"].items())
        extra.append(
            f"{figures['nodes_set']}, one round of the same users through the Grid: {nodes}."
        )
    if "full_ranking_s" in figures:
        full = figures["full_ranking_s"]
        extra.append(
            f"{figures['full_ranking_set']}, all users ranked in the whole catalogue and among "
            f"candidates: NeuMF {full['neumf']:.1f} s, dot {full['dot']:.1f} s."
        )
    return [*rows, "", *extra]


def _growth(figures: Figures) -> list[str]:
    rows = ["| what grows | size | seconds a round | of which training | updates/s |"]
    rows.append("| --- | --: | --: | --: | --: |")
    for what, found in figures["growth"].items():
        for row in found:
            rows.append(
                f"| {what} | {row['size']:,} | {row['round_s']:.3f} | {row['train_s']:.3f} "
                f"| {row['updates_per_s']:,.0f} |"
            )
    return rows


def _plot(figures: Figures, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    split, growth, memory, nodes = figure.subplots(2, 2).ravel()
    names = list(figures["sets"])
    left = [0.0] * len(names)
    for part in PARTS:
        parts = [figures["sets"][name]["neumf"]["nodes_16"] for name in names]
        values = [100 * found["split_s"][part] / found["round_s"] for found in parts]
        split.barh(names, values, left=left, label=part)
        left = [a + b for a, b in zip(left, values, strict=True)]
    split.set(title="A round, NeuMF, 16 nodes", xlabel="% of its time")
    split.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    for what, rows in figures.get("growth", {}).items():
        growth.loglog([r["size"] for r in rows], [r["round_s"] for r in rows], "o-", label=what)
    growth.set(title="Cost of a round", xlabel="cohort, items, users", ylabel="seconds")
    if "growth" in figures:
        growth.legend(fontsize=7)
    for what, held in figures.get("memory", {}).items():
        memory.plot(range(1, len(held) + 1), [b / 2**20 for b in held], label=f"after {what}")
    memory.set(title="Memory of one process", xlabel="rounds, runs", ylabel="MiB")
    memory.set_ylim(0)
    if "memory" in figures:
        memory.legend(fontsize=7)
    places = range(len(names))
    for shift, kind in ((-0.2, "loop"), (0.2, "block")):
        rates = [figures["sets"][name]["neumf"][kind]["updates_per_s"] for name in names]
        nodes.bar([p + shift for p in places], rates, width=0.4, label=kind)
    nodes.set(title="NeuMF, one thread", ylabel="user updates a second")
    nodes.set_xticks(list(places), names, fontsize=7)
    nodes.legend(fontsize=7)
    figure.savefig(path, dpi=110)
