"""``equalbits list`` says of every name what it is."""

import re

from equalbits.cli import main
from equalbits.cli.about import ABOUT
from equalbits.cli.names import live_names
from equalbits.models import registry


def test_every_name_has_a_line_that_fits() -> None:
    names = live_names()
    for kind, rows in names.items():
        for name, words in rows.items():
            assert words and "\n" not in words, f"{kind}: {name} says nothing of itself"
    for kind, rows in ABOUT.items():
        assert rows.keys() <= names[kind].keys()  # none is left of a name that is gone
        assert all(len(words) <= 96 for words in rows.values())
        assert len(set(rows.values())) == len(rows)


def test_a_network_of_ones_own_speaks_for_itself(capsys, monkeypatch) -> None:
    def tiny(layers: object, num_classes: int, *, in_channels: int = 3, image_size: int = 32) -> None:
        """Four layers, two of them binary.

        The rest is not shown.
        """

    monkeypatch.setitem(registry._BUILDERS, "tiny", tiny)
    assert main(["list", "models", "--match", "tiny"]) == 0
    assert capsys.readouterr().out == "models:\n  tiny  Four layers, two of them binary\n"


def test_it_says_when_to_take_which_irnet(capsys) -> None:
    assert main(["list", "methods", "--match", "irnet*"]) == 0
    lines = dict(re.findall(r"^  (irnet\S*) +(.+)$", capsys.readouterr().out, flags=re.MULTILINE))
    assert set(lines) == {"irnet", "irnet-identity", "irnet-stable", "irnet-through"}
    assert "where a batch norm follows" in lines["irnet"] and "without batch norm" in lines["irnet-stable"]
    assert "tenth of the usual lr" in lines["irnet-through"] and "balance alone" in lines["irnet-identity"]


def test_what_is_said_of_all_names_begins_below_each_other(capsys) -> None:
    assert main(["list"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert len({re.match(r"  \S+ +", line).end() for line in lines}) == 1
