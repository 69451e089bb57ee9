"""Print docs/reference/settings.md from the settings themselves; a test compares the two."""

from fedrecgel.common.algorithms.registry import ALGORITHMS
from fedrecgel.common.config import Config, setting_help

HEAD = """# Settings

The same names everywhere: `--set local-lr=0.05` on the command line, `local_lr=0.05` in Python,
`local-lr` in Flower's run-config. Defaults are those of preset `paper` (FedNCF: of `one-step`, and
its `paper` sets `sends` and `local-lr`); preset `tuned` changes some
([how](../explanation/tuning.md)). An unknown name or a wrong value is an error that says what would
do.
Written by `python .ci/settings_page.py > docs/reference/settings.md`.
"""


EVERY = {name for name, *_ in setting_help(Config)}


def page() -> str:
    """The page's text: a row where a default or a meaning first occurs, else its name alone."""
    lines, known = [HEAD], set()
    classes = [("Every algorithm", Config)]
    order = sorted(ALGORITHMS, key=lambda name: name not in ("fedncf", "fedrecgel"))
    order.sort(key=lambda name: name != "fedncf")  # FedRecGEL has FedNCF's settings and its own
    classes += [(name, ALGORITHMS[name].config_class) for name in order]
    for title, config in classes:
        every = setting_help(config)
        rows = [row for row in every if row not in known]
        before = [f"`{name}`" for name, *_ in every if name not in {row[0] for row in rows}]
        lines += [f"## {title}", "", "| setting | default | meaning |", "| --- | --- | --- |"]
        lines += [
            f"| `{name}` | `{default}` | {text.replace('|', 'or')} |"
            for name, default, text in rows
        ]
        own = [name for name in before if name.strip("`") not in EVERY]
        if own:
            lines += ["", f"As above: {', '.join(own)}."]
        known |= set(every)
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
