"""Tables in a narrow terminal wrap and cut no text."""

import re
import sys

from equalbits.cli.demo import _print_table
from equalbits.cli.reproduce import _print_rows
from equalbits.paper import Claim, DemoCounts


def make_narrow(monkeypatch) -> None:
    """A terminal of 50 columns, without colours."""
    for name, value in {"COLUMNS": "50", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def plain(printed: str) -> str:
    """Without what makes a terminal write bold."""
    return re.sub(r"\x1b\[\d+m", "", printed)


def column(printed: str, place: int, width: int) -> str:
    """What stands from ``place`` on in each line, joined."""
    return "".join(line[place : place + width].strip() for line in printed.splitlines())


def test_the_demo_table_does_not_cut_numbers(monkeypatch, capsys):
    make_narrow(monkeypatch)
    flips = {"to_positive": 1234567890, "to_negative": 1234567890, "filters": 170, "exact_filters": 170}
    drawn = {"steps": [], "entropies": [], "filter_to_positive": [], "filter_to_negative": [], "seconds": 1.0}
    _print_table([DemoCounts(method="sign", correct=1, total=2, entropy=0.953211, attainable=1.0, **flips, **drawn)])
    printed = plain(capsys.readouterr().out)
    assert max(map(len, printed.splitlines())) <= 50
    assert "…" not in printed
    assert any("1,234,567,890" in column(printed, place, width) for place in range(50) for width in range(4, 9))


def test_the_claims_table_does_not_cut_words_or_numbers(monkeypatch, capsys, tmp_path):
    make_narrow(monkeypatch)
    row = Claim(
        claim="circumstances", paper="0.123456789", ours="0.987654321", agrees=True, decided_by="incontestably", n=9
    )
    _print_rows("fig6", tmp_path, [row])
    printed = plain(capsys.readouterr().out).partition("plot:")[0]
    assert max(map(len, printed.splitlines())) <= 50
    assert "…" not in printed
    for word in ("circumstances", "0.123456789", "0.987654321", "incontestably"):
        assert any(word in column(printed, place, width) for place in range(50) for width in range(4, 12))


def test_the_settings_table_does_not_cut_names_or_values(monkeypatch, call):
    make_narrow(monkeypatch)
    code, printed, _ = call("list", "--settings")
    assert code == 0
    assert "\n      " in printed  # lines are broken
    assert "…" not in printed
