import csv
import io

import pytest

from fedrecgel.simulation.compare.figures import _COLOURS, _DASHES, _MARKERS, figures
from fedrecgel.simulation.compare.gather import METRICS
from fedrecgel.simulation.compare.tables import (
    csv_table,
    html_page,
    latex,
    latex_tables,
    markdown_tables,
    text_tables,
)

NASTY = 'a&b_<i>"50%\\,x'


def measured(label, kind, mean, mark):
    return {
        "label": label,
        "kind": kind,
        "status": "done",
        "about": {"server_sees": "sums", "scored_with": "own", "negatives": "clean"},
        "notes": [],
        "settings": {"server-lr": 0.1, "row-average": True},
        "trials": [{"settings": {}, "status": "done", "score": 0.1}],
        "seeds": [0, 1],
        "metrics": {m: {"mean": mean, "low": mean - 0.01, "high": mean + 0.01} for m in METRICS},
        "tests": dict.fromkeys(METRICS, mark),
        "evaluated": 9,
        "eligible": 10,
        "bytes_up": 1500.0,
        "bytes_down": 2.5e6,
        "cpu_per_round": 0.1,
        "never_trained": 0.25,
        "head": 0.5,
        "tail": None,
        "overlap": 3.0,
        "trials_inside": None,
        "coverage": 0.2,
        "curve": [[10, 0.1, 0.05, 0.15], [20, 0.2, 0.1, 0.3]],
    }


@pytest.fixture
def values():
    worse = {"best": False, "value": -0.1, "p_holm": 0.01}
    unsure = {"best": False, "value": -0.1, "p_holm": 0.06}
    better = {"best": False, "value": 0.1, "p_holm": 0.01}
    missing = {**measured("slow", "federated", 0, {}), "status": "infeasible"}
    for name in ("metrics", "evaluated"):
        del missing[name]
    missing["notes"] = ["seed 0 infeasible: 9 s a round x 400 rounds"]
    part = {
        "name": NASTY,
        "hash": "f" * 64,
        "protocol": "default",
        "split": "leave-one-out",
        "seed": 0,
        "users": 10,
        "items": 20,
        "train": 50,
        "rows": [
            measured("ease", "reference", 0.9, better),
            measured("best", "federated", 0.8, {"best": True}),
            measured("worse", "federated", 0.7, worse),
            measured("unsure", "federated", 0.75, unsure),
            missing,
        ],
    }
    options = {"seeds": 2, "budget": 4, "trial_rounds": 50, "workers": 2, "time_limit": None}
    return {
        "format": 1,
        "command": "fedrecgel compare --data 'x & y'",
        "options": {**options, "settings": {"rounds": 400}},
        "versions": {"fedrecgel": "1.0"},
        "reading": ["metrics in %"],
        "data": [part],
    }


def line_of(text, name):
    return next(line for line in text.splitlines() if line.startswith(name))


def test_the_text_marks_the_best_and_what_is_surely_worse(values):
    text = text_tables(values)
    assert "80.0 ± 1.0*" in line_of(text, "best ")
    assert "70.0 ± 1.0-" in line_of(text, "worse ")
    assert line_of(text, "unsure ").rstrip().endswith("75.0 ± 1.0")
    assert "90.0 ± 1.0+" in line_of(text, "(ease)")


def test_a_missing_cell_is_shown_as_missing_with_its_reason(values):
    text = text_tables(values)
    assert "infeasible" in line_of(text, "slow ")
    assert "slow: seed 0 infeasible: 9 s a round x 400 rounds" in text
    assert "infeasible" in latex_tables(values)
    assert "infeasible" in html_page(values)
    rows = list(csv.DictReader(io.StringIO(csv_table(values))))
    assert (rows[4]["status"], rows[4]["full.ndcg@10"]) == ("infeasible", "")


def test_trials_are_the_same_number_in_every_table(values):
    rows = values["data"][0]["rows"]
    rows[0] |= {"trials": [], "trials_inside": 6}
    rows[1]["trials"].append({"settings": {}, "status": "failed", "score": None})
    rows[2]["trials"] = []
    told = [row["trials"] for row in csv.DictReader(io.StringIO(csv_table(values)))]
    assert told[:3] == ["6", "1", "0"]
    costs = text_tables(values).split("scored with")[1]
    for name, cell in (("(ease)", "6"), ("best ", "1 of 2"), ("worse ", "untuned")):
        assert f"  {cell}  " in line_of(costs, name)


def test_fewer_than_99_candidates_are_told(values):
    part = values["data"][0]
    for counts, said in (
        ({"fewest": 60, "most": 99}, "; sampled: among 60 to 99 items here, not 99"),
        ({"fewest": 40, "most": 40}, "; sampled: among 40 items here, not 99"),
        ({"fewest": 99, "most": 99}, ""),
    ):
        part["candidates"] = counts
        assert f"test users counted: 9 of 10{said}\n" in text_tables(values)


def test_every_table_says_what_it_was_made_from(values):  # U069
    for text in (text_tables(values), latex_tables(values)):
        for told in ("f" * 64, "protocol default", "seeds 0 to 1", "4 trials each", "9 of 10"):
            assert told in text
        assert "fedrecgel 1.0" in text
        assert "fedrecgel compare --data 'x & y'" in text
    assert "f" * 64 in html_page(values)


def test_csv_has_plain_numbers_and_survives_any_name(values):
    rows = list(csv.DictReader(io.StringIO(csv_table(values))))
    assert rows[1]["data"] == NASTY
    assert float(rows[1]["full.ndcg@10"]) == 0.8
    assert float(rows[2]["full.ndcg@10 p_holm"]) == 0.01
    assert rows[1]["settings"] == "server-lr=0.1 row-average=true"
    assert float(rows[1]["bytes_down"]) == 2.5e6


def test_latex_prints_any_text_as_it_is(values):
    assert latex("a&b_c%#${}~^\\") == (
        r"a\&b\_c\%\#\$\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    values["data"][0]["rows"][1]["label"] = NASTY
    body = [x for x in latex_tables(values).splitlines() if x and not x.startswith("%")]
    nasty = next(x for x in body if x.startswith("a"))
    assert nasty.startswith(r'a\&b\_$<$i$>$"50\%\textbackslash{},x & 80.0 $\pm$ 1.0$^{*}$ &')
    # A row has as many separators as the table has columns between.
    assert nasty.replace(r"\&", "").count("&") == len(METRICS)


def test_a_line_break_in_a_name_cannot_end_a_latex_comment(values):
    values["data"][0]["name"] = "x\n\\input{y}"
    assert not any(x.startswith("\\input") for x in latex_tables(values).splitlines())


def test_markdown_keeps_its_columns_with_any_name(values):
    values["data"][0]["rows"][1]["label"] = "a|b*c"
    row = next(x for x in markdown_tables(values).splitlines() if "a\\|b" in x)
    assert row.startswith("| a\\|b\\*c | 80.0 ± 1.0\\* |")
    assert row.replace("\\|", "").count("|") == len(METRICS) + 2


def test_html_shows_any_text_as_it_is(values):
    values["data"][0]["rows"][1]["label"] = "<script>alert(1)</script>"
    page = html_page(values)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a&amp;b_&lt;i&gt;&quot;50%" in page


def test_pictures_are_drawn_also_where_something_is_missing(values, tmp_path):
    figures(values, tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(first) == {"accuracy.png", "curves.png"}
    figures(values, tmp_path)
    assert first == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    values["data"][0]["rows"] = values["data"][0]["rows"][4:]
    figures(values, tmp_path)


def test_forty_rows_of_a_plot_all_look_different() -> None:
    colours = [_COLOURS[place % len(_COLOURS)] for place in range(40)]
    for shapes in (_MARKERS, _DASHES):
        looks = {(colours[place], shapes[place % len(shapes)]) for place in range(40)}
        assert len(looks) == 40
