"""The page of the best networks has in bold the published accuracies that the item compares with."""

import re
from pathlib import Path

from equalbits.paper.items.best_nets import NETS

PAGE = (Path(__file__).parents[2] / "docs" / "best.md").read_text()


def published():
    """Return network, accuracy, whether it is bold, and method of each row of the table."""
    rows, network = [], ""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and (number := re.match(r"(\**)(\d+\.\d+)", cells[1])):
            network = cells[0] or network
            name = network.replace(", ", " ").removeprefix("CIFAR-10 ")
            rows.append((name, float(number[2]), bool(number[1]), re.match(r"\[(.*?)\]", cells[2])[1], cells[5]))
    return rows


def test_the_bold_numbers_are_those_of_the_item():
    bold = {network: (accuracy, method) for network, accuracy, is_bold, method, _ in published() if is_bold}
    assert bold == {network: (accuracy, method) for network, (_, accuracy, method) in NETS.items()}


def test_no_higher_number_is_published_for_the_network_but_for_another_one():
    for network, accuracy, _, _, differs in published():
        assert accuracy <= NETS[network][1] or differs.startswith("another network")
