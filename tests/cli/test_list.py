"""``equalbits list`` describes every name."""

import re

from equalbits.cli import main
from equalbits.cli.descriptions import DESCRIPTIONS
from equalbits.cli.list import descriptions
from equalbits.models import registry


def test_every_name_has_a_short_description() -> None:
    names = descriptions()
    for kind, rows in names.items():
        for name, line in rows.items():
            assert line and "\n" not in line, f"{kind}: {name} has no description"
    for kind, rows in DESCRIPTIONS.items():
        assert rows.keys() <= names[kind].keys()  # no description of a removed name
        assert all(len(line) <= 96 for line in rows.values())
        assert len(set(rows.values())) == len(rows)


def test_vgg_small_is_described_beside_vgg16() -> None:
    assert descriptions()["models"]["vgg_small"].endswith("; the first and the last real")


def test_a_registered_network_is_described_by_its_docstring(capsys, monkeypatch) -> None:
    def tiny(layers: object, num_classes: int, *, in_channels: int = 3, image_size: int = 32) -> None:
        """Four layers, two of them binary.

        The rest is not shown.
        """

    monkeypatch.setitem(registry._BUILDERS, "tiny", tiny)
    assert main(["list", "models", "--match", "tiny"]) == 0
    assert capsys.readouterr().out == "models:\n  tiny  Four layers, two of them binary\n"


def test_descriptions_distinguish_the_irnet_variants(capsys) -> None:
    assert main(["list", "methods", "--match", "irnet*"]) == 0
    lines = dict(re.findall(r"^  (irnet\S*) +(.+)$", capsys.readouterr().out, flags=re.MULTILINE))
    assert set(lines) == {"irnet", "irnet-identity", "irnet-stable", "irnet-through"}
    assert "only where a batch norm follows" in lines["irnet"] and "without batch norm" in lines["irnet-stable"]
    assert "tenth of the usual lr" in lines["irnet-through"] and "balancing alone" in lines["irnet-identity"]


def test_descriptions_are_aligned(capsys) -> None:
    assert main(["list"]) == 0
    names = capsys.readouterr().out.partition("zoo:\n")[0]
    lines = [line for line in names.splitlines() if line.startswith("  ")]
    assert len({re.match(r"  \S+ +", line).end() for line in lines}) == 1
