"""Speeds, sizes and accuracies in the README's part on packed files are those of results/ and of the zoo's cards."""

import json
import re
from pathlib import Path
from typing import Any

from equalbits.runtime import zoo

ROOT = Path(__file__).parents[2]
PART = (ROOT / "README.md").read_text().partition("## Pack and run")[2].partition("\n## ")[0]
MACHINES = {
    "Intel, AVX2 only": ("cpu-inference-avx2", "avx2"),
    "Intel, AVX-512": ("cpu-inference-avx512", "avx512"),
    "AMD, AVX-512": ("cpu-inference-amd-avx512", "avx512"),
}


def tables() -> list[list[list[str]]]:
    """The tables of the part, as rows of cells without the line below the header."""
    found = re.findall(r"(?:^\|.*\n)+", PART, flags=re.MULTILINE)
    rows = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()] for text in found]
    return [[header, *lines] for header, _, *lines in rows]


def card(name: str) -> dict[str, Any]:
    return dict(json.loads((Path(zoo.__file__).parent / f"{name}.json").read_text()))


def test_every_time_of_the_untrained_network_is_the_median_of_a_measurement():
    times: dict[str, list[str]] = {"equalbits": [], "OpenVINO, int8": []}
    for name, instructions in MACHINES.values():
        found = json.loads((ROOT / f"results/{name}.json").read_text())
        assert found["made_with"]["threads"] == 1
        for engine, shown in times.items():
            key = f"{engine}, {instructions}" if engine == "equalbits" else engine
            shown.append(f"{found['resnet18'][key]['ms']['median']:.1f}")
    ours, theirs = times["equalbits"], times["OpenVINO, int8"]
    text = " ".join(PART.split())
    assert f"takes {ours[0]} ms on one core of an Intel with AVX2 only, {ours[1]} ms with AVX-512" in text
    assert f"and {ours[2]} ms on an AMD with AVX-512" in text
    assert f"in OpenVINO with int8 {theirs[0]}, {theirs[1]} and {theirs[2]} ms." in text


def test_every_time_of_the_trained_network_is_the_median_of_a_measurement():
    found = json.loads((ROOT / "results/zoo-speed.json").read_text())
    header, *rows = tables()[0]
    assert (header, len(rows)) == (["engine", "accuracy", "ms"], len(found["engines"]))
    medians = {engine.partition(", avx")[0]: each["ms"]["median"] for engine, each in found["engines"].items()}
    for words, accuracy, time in rows:
        assert time == f"{medians.pop(words.rpartition('in ')[2]):.2f}"
        ours = f"{card('cifar10-resnet18')['test']['accuracy']:.2f} %"
        assert accuracy == (ours if words == "equalbits" else "not trained")
    assert f"median of {found['made_with']['rounds']} rounds" in PART


def test_a_speed_has_an_accuracy_beside_it_or_says_that_there_is_none():
    small, large = card("fashion-conv4"), card("cifar10-resnet18")
    time = small["milliseconds"]
    facts = (
        "is **untrained**, so its time has no accuracy beside it",
        f"{small['test']['accuracy']:.2f} % of {small['test']['total']:,} test images",
        f"{large['test']['accuracy']:.2f} % of the {large['test']['total']:,} test images",
        f"(1 seed, {small['epoch']} epoch) in {time['median']:.3f} ms each",
        f"a file of {small['bytes']:,} bytes",
        f"a file of {large['bytes']:,} bytes",
        f"one core of an {time['cpu'].partition(',')[0]} with AVX-512",
    )
    text = " ".join(PART.split())
    assert [fact for fact in facts if fact not in text] == []
    assert (time["threads"], time["engine"]) == (1, "native (avx512)")


def test_sizes_of_the_packed_resnet_are_those_of_the_page_on_packing():
    sizes = re.findall(r"\| ([\d,]+) bytes \|", (ROOT / "docs" / "packing.md").read_text())
    whole, _, narrow = (int(size.replace(",", "")) / 1e6 for size in sizes[:3])
    assert f"has {whole:.1f} MB instead of 46.8 MB in float32, or {narrow:.1f} MB" in PART
