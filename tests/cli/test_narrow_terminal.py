"""Tables in a narrow terminal wrap and cut no text."""

import io
import re
import sys

from equalbits._text import format_table
from equalbits.cli import main
from equalbits.cli.reproduce import print_claims
from equalbits.cli.terminal import print_table
from equalbits.paper import Claim


def make_narrow(monkeypatch) -> None:
    """A terminal of 50 columns, without colours."""
    for name, value in {"COLUMNS": "50", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def plain(printed: str) -> str:
    """Text without the escape codes of bold."""
    return re.sub(r"\x1b\[\d+m", "", printed)


def column(printed: str, place: int, width: int) -> str:
    """Text from ``place`` on in each line, joined."""
    return "".join(line[place : place + width].strip() for line in printed.splitlines())


def test_a_table_does_not_cut_numbers(monkeypatch, capsys):
    make_narrow(monkeypatch)
    header = ["method", "accuracy", "entropy", "attainable", "flips to +1", "flips to −1"]
    print_table(header, [["sign", "50.00 %", "0.953211", "1.0", "1,234,567,890", "1,234,567,890"]], right=header[1:])
    printed = plain(capsys.readouterr().out)
    assert max(map(len, printed.splitlines())) <= 50
    assert "…" not in printed
    assert any("1,234,567,890" in column(printed, place, width) for place in range(50) for width in range(4, 9))


def test_the_claims_table_does_not_cut_words_or_numbers(monkeypatch, capsys):
    make_narrow(monkeypatch)
    row = Claim(
        claim="circumstances", paper="0.123456789", ours="0.987654321", agrees=True, decided_by="incontestably", n=9
    )
    print_claims([row])
    printed = plain(capsys.readouterr().out)
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


def test_names_and_packed_files_fit_a_terminal_of_80_columns(monkeypatch, capsys):
    make_narrow(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["list"], ["inspect", "zoo:cifar10-resnet18"], ["list", "zoo"]):
        assert main(words) == 0
        assert max(map(len, plain(capsys.readouterr().out).splitlines())) <= 80


def test_piped_tables_fit_80_columns(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())
    header = ["method", *(f"measurement {number}" for number in range(9))]
    print_table(header, [["bihalf", *["1,234,567"] * 9]], right=header[1:])
    assert main(["inspect", "zoo:cifar10-resnet18"]) == 0
    print(format_table(header, [["bihalf", *["1,234,567"] * 9]]))
    assert 70 < max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_wide_table_continues_below_with_its_first_column():
    rows = [("conv1", "27", "0.5"), ("fc", "1,000", "1.0")]
    first, second = format_table(("layer", "weights", "entropy"), rows, width=15).split("\n\n")
    assert first.splitlines() == ["layer  weights", "conv1       27", "fc       1,000"]
    assert second.splitlines() == ["layer  entropy", "conv1      0.5", "fc         1.0"]
    assert format_table(("layer", "weights"), [("long" * 9, "3")], width=9).count("\n") == 1
