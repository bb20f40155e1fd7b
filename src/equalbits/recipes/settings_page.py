"""docs/settings.md, drawn from the settings' classes by ``python -m equalbits.recipes.settings_page``."""

from pathlib import Path

from equalbits.recipes.settings import NONE, Table, settings_tables

_HEAD = f"""# Settings

Every setting a recipe can have, drawn from the code by `python -m equalbits.recipes.settings_page`;
`equalbits list --settings` prints the same.

```bash
equalbits train fashion-conv2 --out runs/five --set epochs=5 --set optimizer.lr=0.05
equalbits train fashion-conv2 --out runs/steps --set schedule.name=step --set 'schedule.milestones=[2, 3]'
```

In a TOML file of your own the part before the dot is the table: `[optimizer]`, then `lr = 0.05`. The default is what
such a file gets where it says nothing ({NONE}: there is none). A recipe that comes with the package may have another
value, which `equalbits list --show RECIPE` shows.
"""


def settings_page() -> str:
    """The page."""
    return _HEAD + "".join(_section(table) for table in settings_tables())


def _section(table: Table) -> str:
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    rows = "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
    return f"\n## {table.title.capitalize()}\n\n{table.about}\n\n{rows}".replace("``", "`")


if __name__ == "__main__":
    Path("docs/settings.md").write_text(settings_page(), encoding="utf-8")
