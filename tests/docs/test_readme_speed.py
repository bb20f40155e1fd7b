"""Speeds, sizes and accuracies in the README's part on packed files are those of results/ and of the zoo's cards."""

import json
import re
from pathlib import Path

from equalbits.runtime import zoo

ROOT = Path(__file__).parents[2]
PART = (ROOT / "README.md").read_text().partition("## Pack and run")[2].partition("\n## ")[0]
MACHINES = {
    "Intel, AVX2 only": ("cpu-inference-avx2", "avx2"),
    "Intel, AVX-512": ("cpu-inference-avx512", "avx512"),
    "AMD, AVX-512": ("cpu-inference-amd-avx512", "avx512"),
}


def test_every_time_of_the_table_is_the_median_of_a_measurement():
    lines = re.findall(r"^\|.*", PART, flags=re.MULTILINE)
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert header == ["engine", *MACHINES]
    assert len(rows) == 5
    for engine, *times in rows:
        for (name, instructions), time in zip(MACHINES.values(), times, strict=True):
            found = json.loads((ROOT / f"results/{name}.json").read_text())
            assert found["made_with"]["threads"] == 1
            key = engine.removeprefix("real network in ") if engine != "equalbits" else f"equalbits, {instructions}"
            assert time == f"{found['resnet18'][key]['ms']['median']:.1f} ms", (engine, name)


def test_every_speed_has_an_accuracy_beside_it_or_states_that_there_is_none():
    card = json.loads((Path(zoo.__file__).parent / "fashion-conv4.json").read_text())
    test, time = card["test"], card["milliseconds"]
    facts = (
        "the network is **untrained**",
        f"{100 * test['correct'] / test['total']:.2f} % of {test['total']:,} test images",
        f"(1 seed, {card['epoch']} epoch)",
        f"{time['median']:.3f} ms each on one core of an {time['cpu'].partition(',')[0]} with AVX-512",
        f"a file of {card['bytes']:,} bytes",
    )
    text = " ".join(PART.split())
    assert [fact for fact in facts if fact not in text] == []
    assert (time["threads"], time["engine"]) == (1, "native (avx512)")


def test_sizes_of_the_packed_resnet_are_those_of_the_page_on_packing():
    sizes = re.findall(r"\| ([\d,]+) bytes \|", (ROOT / "docs" / "packing.md").read_text())
    whole, _, narrow = (int(size.replace(",", "")) / 1e6 for size in sizes[:3])
    assert f"has {whole:.1f} MB instead of 46.8 MB in float32, or {narrow:.1f} MB" in PART
