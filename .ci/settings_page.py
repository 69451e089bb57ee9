"""Print docs/reference/settings.md from the settings themselves; a test compares the two."""

from fedrecgel.common.algorithms.registry import ALGORITHMS
from fedrecgel.common.config import Config, setting_help

HEAD = """# Settings

The same names everywhere: `--set local-lr=0.05` on the command line, `local_lr=0.05` in Python,
`local-lr` in Flower's run-config. Defaults are those of preset `paper`; preset `tuned` changes some
([how](../explanation/tuning.md)). An unknown name or a wrong value is an error that says what would
do.
Written by `python .ci/settings_page.py > docs/reference/settings.md`.
"""


def page() -> str:
    """The page's text."""
    lines, known = [HEAD], set()
    classes = [("Every algorithm", Config)]
    classes += [(name, algorithm.config_class) for name, algorithm in reversed(ALGORITHMS.items())]
    for title, config in classes:
        rows = [row for row in setting_help(config) if row[0] not in known]
        known |= {row[0] for row in rows}
        lines += [f"## {title}", "", "| setting | default | meaning |", "| --- | --- | --- |"]
        lines += [
            f"| `{name}` | `{default}` | {text.replace('|', 'or')} |"
            for name, default, text in rows
        ]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
