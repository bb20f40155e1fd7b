"""``list --settings`` prints everything that ``--set`` accepts, for terminals, pipes and programs."""

import json
import sys

import pytest

from equalbits.recipes.settings_tables import settings_tables


def test_every_setting_is_one_line_with_the_text_of_the_docs_page(call) -> None:
    code, printed, errors = call("list", "--settings")
    assert (code, errors) == (0, "")
    lines = [line.split() for line in printed.splitlines()]
    for table in settings_tables():
        for row in table.rows:
            assert " ".join(row).replace("``", "").split() in lines


def test_lines_fit_the_terminal(call, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "90")
    code, printed, _ = call("list", "--settings")
    assert code == 0
    assert 80 < max(map(len, printed.splitlines())) <= 90
    assert "\x1b" not in printed
    for table in settings_tables():
        for name, *_ in table.rows:
            assert f"\n{name.replace('``', '')}  " in printed


def test_a_pattern_selects_settings_and_json_holds_their_cells(call) -> None:
    code, printed, _ = call("list", "--settings", "--match", "*lr", "--json")
    assert code == 0
    (row,) = json.loads(printed)["optimizer"]
    assert row.pop("meaning")
    assert row == {"setting": "optimizer.lr", "default": "0.1", "values": "a number, above 0"}
    printed = call("list", "--settings", "--match", "optimizer.betas")[1]
    assert "[0.9, 0.999]" in printed and len(printed.splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["models"], "--settings cannot be combined with KIND or --show"),
        (["--show", "fashion-conv2"], "--settings cannot be combined with KIND or --show"),
        (["--match", "zzz*"], "--match zzz*: no setting matches; equalbits list --settings shows all"),
    ],
)
def test_invalid_combinations_are_rejected_in_one_line(words: list[str], line: str, call) -> None:
    code, printed, errors = call("list", "--settings", *words)
    assert (code, printed) == (1, "")
    assert line in errors and errors.count("\n") == 1
