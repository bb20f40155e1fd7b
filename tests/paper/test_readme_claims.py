"""Every number of docs/paper.md, and of the README's part on the paper, is computed from results/."""

import json
import math
import re
import statistics
from pathlib import Path

import pytest

from equalbits._statistics import Sample, equivalence
from equalbits.paper import get_item, list_items
from equalbits.paper.claims import LEVEL, NEAR
from equalbits.paper.published_numbers import TABLE_2
from equalbits.paper.results_page import kept_claims, missing_parts
from equalbits.recipes import get_recipe

ROOT = Path(__file__).parents[2]
NETS = ("conv2", "conv4", "conv6", "conv8")
KEPT = {name: json.loads(path.read_text()) for name in list_items() if (path := ROOT / f"results/{name}.json").exists()}
ROWS = {name: kept_claims(get_item(name), kept) for name, kept in KEPT.items()}


def plain(text: str) -> str:
    """Return a page in one line, without its generated tables, its headings and the targets of its links."""
    text = re.sub(r"<!-- results table: begin -->.*<!-- results table: end -->", "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"\]\([^)]*\)|^#.*$", "]", text, flags=re.MULTILINE).split())


PAPER = plain((ROOT / "docs" / "paper.md").read_text())
README = plain((ROOT / "README.md").read_text().partition("## Does it reproduce the paper?")[2].partition("\n## ")[0])


def scores(case):
    return [100 * run["last"]["test"]["correct"] / run["last"]["test"]["total"] for run in case["runs"]]


def mean(case):
    return statistics.fmean(scores(case))


def methods(cases):
    return {case["settings"]["model.weight_quantizer"]: case for case in cases}


def agreeing(item, words, verdict=True):
    """Number of rows with this text and this verdict, and of all with this text."""
    rows = [row for row in ROWS[item] if words in row.claim]
    return sum(row.agrees is verdict for row in rows), len(rows)


def facts_of_table_2():
    near, cells = agreeing("tab2", "within 0.3 points")
    equivalent = sum(row.decided_by.endswith(", equivalent") for row in ROWS["tab2"])
    yield f"5 seeds each, last epoch, all {10_000:,} test images"
    yield f"Of the {cells} accuracies of table 2, {near} are within 0.3 points"
    (other,) = (row for row in ROWS["tab2"] if "within 0.3" in row.claim and not row.agrees)
    assert other.claim.startswith("Conv4, IR-Net")
    yield f"Conv4 with IR-Net is {other.difference:.2f} points above"
    yield f"with 5 seeds on each side shows {equivalent} of the {cells} to be within 0.3 points"
    shown = [gap for gap in range(300) if equivalence(Sample(gap / 1000, 0.25, 5), Sample(0, 0.25, 5), NEAR) <= LEVEL]
    yield f"with deviations of 0.25 points the means of so few seeds would have to agree to {max(shown) / 1000} points"
    above_sign, nets = agreeing("tab2", "bi-half above Sign")
    yield f"above sign on {above_sign} of {nets} networks"
    above_irnet, nets = agreeing("tab2", "bi-half above IR-Net")
    yield f"above IR-Net on {above_irnet} of {nets}, Conv2"
    assert [row.agrees for row in ROWS["tab2"] if "above IR-Net" in row.claim] == [True, None, None, None]
    images, batch = KEPT["tab2"]["measured"]["nets"]["conv2"][0]["runs"][0]["last"]["train"]["total"], 128
    yield f"last, smaller batch of an epoch ({images // batch} steps); here it is kept ({-(-images // batch)})"
    assert get_recipe("cifar10-conv2").data.batch_size == batch
    assert {len(case["runs"]) for cases in KEPT["tab2"]["measured"]["nets"].values() for case in cases} == {5}
    assert list(methods(KEPT["tab2-tuned"]["measured"]["nets"]["conv2"])) == ["bihalf"]  # tuned alone


def facts_of_initialization_and_readings():
    nets = KEPT["tab2-kaiming"]["measured"]["nets"]
    below = {
        method: [TABLE_2[net, method].mean - mean(methods(nets[net])[method]) for net in NETS]
        for method in ("sign", "irnet-stable", "bihalf")
    }
    low, high = min(below["sign"]), max(below["sign"])
    yield f"sign is {low:.2f} to {high:.2f} points below the paper on Conv2 to Conv8"
    low, high = min(below["bihalf"]), max(below["bihalf"])
    yield f"bi-half {low:.2f} to {high:.2f}"
    low, high = min(below["irnet-stable"]), max(below["irnet-stable"])
    yield f"IR-Net {low:.2f} to {high:.2f}"
    undecided, all_nets = agreeing("tab2-kaiming", "above IR-Net", None)
    yield f"difference of bi-half and IR-Net is within chance on {undecided} of {all_nets} networks"
    kaiming, torchs = math.sqrt(2 / 576), 1 / math.sqrt(3 * 576)  # standard deviations of latents of 576 connections
    yield f"Kaiming's latents are √{(kaiming / torchs) ** 2:.0f} times as large"
    for item, words, where in (
        (
            "tab2",
            "IR-Net (stable): within",
            "it is within 0.3 points of the paper on {} of {} networks, and {} on Conv4",
        ),
        ("tab2-irnet", "IR-Net (identity): within", "it is so on {} of {}, and {} on Conv2"),
        ("tab2-irnet", "IR-Net (through): within", "it is so on {} of {}, and {} on Conv2"),
    ):
        near, of = agreeing(item, words)
        (other,) = (row for row in ROWS[item] if words in row.claim and not row.agrees)
        assert other.claim.startswith(where[-5:])
        side = "above" if other.difference > 0 else "below"
        yield where.format(near, of, f"{abs(other.difference):.2f} {side}")
    through = scores(methods(KEPT["tab2-irnet"]["measured"]["nets"]["conv2"])["irnet-through"])
    yield f"a standard deviation of {statistics.stdev(through):.2f} over {len(through)} seeds"


def facts_of_figures_4_and_5_and_table_1():
    runs = {method: case["runs"] for method, case in KEPT["fig4"]["measured"]["methods"].items()}
    losses = {
        method: [run["last"]["train"]["loss_sum"] / run["last"]["train"]["total"] for run in some]
        for method, some in runs.items()
    }
    half, sign = losses["bihalf"], losses["sign"]
    yield f"trained {len(half)} times with each"
    yield f"a mean training loss of {statistics.fmean(half):.3f}, sign at {statistics.fmean(sign):.3f}"
    assert max(half) < min(sign)
    yield f"the worst bi-half run ({max(half):.3f}) is below the best sign run ({min(sign):.3f})"
    ours, theirs = (mean(KEPT["fig4"]["measured"]["methods"][method]) for method in ("bihalf", "sign"))
    yield f"Test accuracy is {ours:.2f} % and {theirs:.2f} %"
    found = KEPT["fig5"]["measured"]
    shares = dict(zip(found["shares"], found["data"]["CIFAR-10"]["literal"], strict=True))
    assert max((share for share in shares if share != 0.5), key=lambda share: mean(shares[share])) == 0.45
    yield f"it leads a share of 0.45 by {mean(shares[0.5]) - mean(shares[0.45]):.2f} points"
    yield f"a share of 0.6 learns nothing ({mean(shares[0.6]):.2f} %)"
    assert [row.agrees for row in ROWS["fig5"]] == [True, None]
    seeds, others = len(shares[0.5]["runs"]), len(shares) - 1
    yield f"over {seeds} seeds the lead is significant, although 0.45 is the best of {others} other"
    cases = methods(KEPT["entropy"]["measured"]["nets"]["conv2"]["batch norm"])
    gaps = {name: mean(cases["bihalf"]) - mean(case) for name, case in cases.items()}
    tested = ("sign", "bihalf:p_pos=0.45", "bihalf:p_pos=0.55")
    counts = [len(cases[name]["runs"]) for name in ("bihalf", *tested)]
    yield f"one half leads 0.45 by {gaps[tested[1]]:.2f} and 0.55 by {gaps[tested[2]]:.2f} points"
    yield f"bi-half leads sign by {gaps['sign']:.2f}: all significant over {min(counts)} to {max(counts)} seeds"
    for words in ("bi-half above sign", "one half above a share of 0.45", "one half above a share of 0.55"):
        (row,) = (row for row in ROWS["entropy"] if row.claim == f"Conv2, batch norm: {words}")
        assert row.agrees is True
    sign, half = (
        mean({"runs": [{"last": KEPT["tab1"]["measured"]["rules"][rule]["epochs"][-1]}]}) for rule in ("sign", "bihalf")
    )
    yield f"sign has {sign:.2f} % and bi-half {half:.2f} %"


def accuracies_of_entropy(net, form):
    return {name: f"{mean(case):.2f}" for name, case in methods(KEPT["entropy"]["measured"]["nets"][net][form]).items()}


def interval(claim):
    """Confidence interval of a row of the entropy item, as its table prints it."""
    (row,) = (row for row in ROWS["entropy"] if row.claim == claim)
    return re.search(r"interval (.*?):", row.decided_by)[1]


def facts_of_entropy():
    normed, plain = (accuracies_of_entropy("conv2", form) for form in ("batch norm", "no batch norm"))
    half, share, centred = "bihalf", "bihalf:p_pos=0.45", "zero-mean:p_pos=0.45"
    cases = KEPT["entropy"]["measured"]["nets"]["conv2"].values()
    fewest = min(len(methods(each)[name]["runs"]) for each in cases for name in (half, share, centred))
    entropy = -0.45 * math.log2(0.45) - 0.55 * math.log2(0.55)
    yield f"of mean zero has the entropy of the plain share of 0.45, {entropy:.3f} bits"
    yield "A share of 0.45 with two values"
    yield "So what 0.45 loses against one half"
    of_sign = interval("Conv2, batch norm: sign not below sign with zero mean")
    yield (
        f"with batch norm, sign with zero mean has {normed['zero-mean']} %, sign {normed['sign']} %, a difference with "
        f"the 95 % interval {of_sign} points"
    )
    yield f"it reaches {normed[centred]} %, where the plain share has {normed[share]} % and one half {normed[half]} %"
    yield f"without batch norm {plain[centred]}, {plain[share]} and {plain[half]} %, with {fewest} seeds or more"
    verdicts = {row.claim: row.agrees for row in ROWS["entropy"]}
    for form in ("batch norm", "no batch norm"):
        assert verdicts[f"Conv2, {form}: one half above 0.45 with zero mean"] is None
        assert verdicts[f"Conv2, {form}: 0.45 not below 0.45 with zero mean, whose entropy is the same"] is False
    assert verdicts["Conv2, batch norm: sign not below sign with zero mean"] is None
    assert verdicts["Conv2, batch norm: bi-half above sign with zero mean"] is None
    of_sign = scores(methods(KEPT["entropy"]["measured"]["nets"]["conv2"]["no batch norm"])["zero-mean"])
    yield f"Without batch norm, {sum(score == 10 for score in of_sign)} of {len(of_sign)} nets of sign with zero mean"


def accuracies_with_n(net, form):
    cases = methods(KEPT["entropy"]["measured"]["nets"][net][form])
    return {name: f"{mean(case):.2f} % (n = {len(scores(case))})" for name, case in cases.items()}


NEAR_ONE_HALF = ("Conv2, batch norm", "Conv2, no batch norm", "Conv4, batch norm")


def test_the_page_on_entropy_states_the_results():
    page = " ".join((ROOT / "docs" / "entropy.md").read_text().split())
    normed, plain = (accuracies_with_n("conv2", form) for form in ("batch norm", "no batch norm"))
    deeper = accuracies_of_entropy("conv4", "batch norm")
    share, centred = "bihalf:p_pos=0.45", "zero-mean:p_pos=0.45"
    unstable = scores(methods(KEPT["entropy"]["measured"]["nets"]["conv2"]["no batch norm"])["zero-mean"])
    rows = {row.claim: row for row in ROWS["entropy"]}
    nears = [rows[f"{where}: one half above 0.45 with zero mean"] for where in NEAR_ONE_HALF]
    intervals = [interval(row.claim) for row in nears]
    of_signs = interval("Conv2, batch norm: sign not below sign with zero mean")
    facts = (
        *(
            f"{form}, plain 0.45 has {scores[share]}, 0.45 with zero mean {scores[centred]} and one half "
            f"{scores['bihalf']}"
            for form, scores in (("with batch norm", normed), ("without batch norm", plain))
        ),
        f"the plain share has {normed['bihalf:p_pos=0.55']}, with zero mean {normed['zero-mean:p_pos=0.55']}",
        f"has the 95 % interval {intervals[0]} points, without {intervals[1]}.",
        f"sign with zero mean has {normed['zero-mean']}, plain sign {normed['sign']} and bi-half {normed['bihalf']}",
        f"Plain sign against sign with zero mean has the 95 % interval {of_signs} points",
        f"one half has {deeper['bihalf']} % and 0.45 with zero mean {deeper[centred]} %, over 5 seeds each, which is "
        f"not significant either ({intervals[2]} points)",
        f"two of five runs learn nothing, so its mean of {statistics.fmean(unstable):.2f} % is",
    )
    assert [fact for fact in facts if fact not in page] == []
    verdicts = {
        word: rows[f"Conv2, batch norm: bi-half above {word}"].agrees for word in ("sign", "sign with zero mean")
    }
    assert verdicts == {"sign": True, "sign with zero mean": None} and {row.agrees for row in nears} == {None}
    assert (sum(score == 10 for score in unstable), len(unstable)) == (2, 5)
    left = page
    for fact in facts:
        left = left.replace(fact, "")
    assert re.findall(r"\d+\.\d+ %|n = |[+−]\d\.", left) == []


def facts_of_pruning():
    found = KEPT["fig8"]["measured"]
    assert {row.agrees for row in ROWS["fig8"]} == {None}
    yield f"measured with {len(KEPT['fig8']['seeds'])} seed so far"

    def by_net(rule, sparsity):
        at = found["sparsities"].index(sparsity)
        some = [mean(rules[rule][at]) for rules in found["nets"].values() if rule in rules]
        return " and ".join(filter(None, [", ".join(f"{score:.2f}" for score in some[:-1]), f"{some[-1]:.2f}"]))

    yield f"({by_net('pruned-bihalf', 0.5)} % on Conv2, 4, 6 and 8, compared with {by_net('pruned-bihalf', 0.0)})"
    yield f"a tenth of them {by_net('pruned-bihalf', 0.9)}"
    yield f"on learned masks, a tenth gives {by_net('pruned-bihalf-score', 0.9)}"
    yield f"at a tenth of the paper's learning rate ({by_net('pruned-sign-slow', 0.9)}; at the full rate"
    assert set(re.split(", | and ", by_net("pruned-sign", 0.9))) == {"10.00"}
    mpt = f"reach {by_net('mpt', 0.5)} on Conv2 and 4 with half of the weights and {by_net('mpt', 0.9)} with a tenth"
    yield mpt + "; Conv6 and 8 are not trained"


def facts_of_what_is_complete():
    yield f"Measured in full: {', '.join(name for name in KEPT if not missing_parts(get_item(name), KEPT[name]))}."


FACTS = [
    *facts_of_table_2(),
    *facts_of_initialization_and_readings(),
    *facts_of_figures_4_and_5_and_table_1(),
    *facts_of_entropy(),
    *facts_of_pruning(),
    *facts_of_what_is_complete(),
]
#: Names of networks, figures, tables, data sets and shares, and the tolerance.
NAMES = r"Conv[2468]|[Ff]igure \d|[Tt]able \d|CIFAR-100?|share of \+1|\+1|tenth of the learning rate"


@pytest.mark.parametrize("fact", FACTS)
def test_the_page_on_the_paper_states_the_results(fact):
    assert fact in PAPER


@pytest.mark.parametrize("page", [PAPER, README], ids=["docs/paper.md", "README.md"])
def test_no_number_is_without_a_result(page):
    rest = page
    for fact in sorted(FACTS, key=len, reverse=True):
        rest = rest.replace(fact, "…")
    rest = re.sub(NAMES, "…", rest)
    assert re.findall(r"[^.…]*\d[^.…]*", rest) == []
    words = r"\b(two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|hundred|tenth|quarter|twice|dozen)\b"
    assert re.findall(words, rest, flags=re.IGNORECASE) == []
