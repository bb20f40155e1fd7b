"""Answers of a trained net to its test images: confusion matrix, accuracy per class, samples and worst mistakes."""

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from equalbits.analysis import summarize
from equalbits.data import DataError, Loader, spread
from equalbits.recipes import DataSpec, dataset_of, last_weights, load_run
from equalbits.report.tables import ReportTable

#: Multiply-accumulates of one section, seconds on a CPU: a larger net answers fewer images, spread over the test set.
MAX_MACS = 5e11
#: Most classes of a matrix; the report of more classes lists the most frequent mistakes.
MATRIX_CLASSES = 20
_LEAST, _SHOWN, _LISTED, _SIDE = 100, 12, 20, 96


class Picture(NamedTuple):
    """One test image as data URI, its class, the answer, and the share of certainty that the net gave the answer."""

    image: str
    label: str
    answer: str
    share: float


class Matrix(NamedTuple):
    """Counts by class (row) and answer (column), with the accuracy of each class in per cent."""

    classes: Sequence[str]
    counts: Sequence[Sequence[int]]
    accuracy: Sequence[float | None]


class AnswerSection(NamedTuple):
    """Contents of the section; ``note`` says which images were used, or why there is none."""

    note: str = ""
    matrix: Matrix | None = None
    tables: Sequence[ReportTable] = ()
    samples: Sequence[Picture] = ()
    mistakes: Sequence[Picture] = ()


class _Answers(NamedTuple):
    images: Tensor  # uint8
    labels: Tensor
    answers: Tensor
    shares: Tensor
    total: int


def answers_of(folder: Path) -> AnswerSection:
    """Run the last weights of a run on its test images; an empty section where weights or images are missing."""
    if not all(path.is_file() for path in (last_weights(folder), folder / "model.json", folder / "recipe.toml")):
        return AnswerSection()
    try:
        spec, found = DataSpec.read(folder / "model.json"), _answer(folder)
    except DataError as error:
        return AnswerSection(note=f"No test images are shown: {' '.join(str(error).split())}")
    except (ValueError, TypeError, RuntimeError, MemoryError, OSError):  # the table of bits names the error
        return AnswerSection()
    classes, shown = spec.classes, len(found.labels)
    counts = torch.zeros(len(classes), len(classes), dtype=torch.long)
    counts.index_put_((found.labels, found.answers), torch.ones(shown, dtype=torch.long), accumulate=True)
    wrong = (found.labels != found.answers).nonzero().flatten()
    worst = wrong[found.shares[wrong].argsort(descending=True, stable=True)][:_SHOWN]
    spread = torch.linspace(0, shown - 1, min(_SHOWN, shown)).long()
    part = f"all {shown:,} test images" if shown == found.total else ""
    images = part or f"{shown:,} of {found.total:,} test images, evenly spread"
    return AnswerSection(
        note=f"Answers of the last epoch to {images}: {len(wrong):,} mistake{'s' * (len(wrong) != 1)}.",
        matrix=Matrix(classes, counts.tolist(), _accuracies(counts)) if len(classes) <= MATRIX_CLASSES else None,
        tables=[] if len(classes) <= MATRIX_CLASSES else _tables(counts, classes),
        samples=_pictures(found, spread, classes),
        mistakes=_pictures(found, worst, classes),
    )


def _answer(folder: Path) -> _Answers:
    run, spec = load_run(folder), DataSpec.read(folder / "model.json")
    dataset = dataset_of(folder, "test")
    if difference := spec.difference(DataSpec.of(Loader(dataset, batch_size=1))):
        raise DataError(f"the run was trained on {difference}")
    total = summarize(run.model, (1, spec.channels, spec.size, spec.size)).total
    macs = max(1, sum(total[f"{kind}_macs"] for kind in ("binary", "mixed", "real")))
    few = dataset.select(spread(max(_LEAST, int(MAX_MACS // macs)), len(dataset)))
    mean, std = (torch.tensor(values)[:, None, None] for values in (spec.mean, spec.std))
    parts: list[tuple[Tensor, ...]] = []
    with torch.no_grad():
        for images, labels in Loader(few, batch_size=200):
            pixels = ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
            logits = run.model(images).float()
            answers = logits.argmax(1)
            parts.append((pixels, labels, answers, logits.softmax(1).gather(1, answers[:, None])[:, 0]))
    images, labels, answers, shares = (torch.cat(each) for each in zip(*parts, strict=True))
    return _Answers(images, labels, answers, shares, len(dataset))


def _accuracies(counts: Tensor) -> list[float | None]:
    sums, correct = counts.sum(1).tolist(), counts.diagonal().tolist()
    return [100 * right / images if images else None for right, images in zip(correct, sums, strict=True)]


def _tables(counts: Tensor, classes: Sequence[str]) -> list[ReportTable]:
    """The most frequent mistakes, and the accuracy of each class from the lowest to the highest."""
    mistakes = counts - counts.diag().diag()
    pairs = mistakes.flatten().argsort(descending=True, stable=True)[:_LISTED]
    often = [(classes[pair // len(classes)], classes[pair % len(classes)], pair) for pair in pairs.tolist()]
    rows = [[label, answer, str(n)] for label, answer, pair in often if (n := int(mistakes.flatten()[pair]))]
    known = zip(_accuracies(counts), classes, counts.sum(1).tolist(), counts.diagonal().tolist(), strict=True)
    ranked = sorted((share, name, images, right) for share, name, images, right in known if share is not None)
    lines = [[name, f"{right} of {images}", f"{share:.1f}"] for share, name, images, right in ranked]
    return [
        ReportTable("The most frequent mistakes", ("class", "answer", "images"), rows, ("answer",)),
        ReportTable("Accuracy per class, lowest first", ("class", "correct", "accuracy, %"), lines),
    ]


def _pictures(found: _Answers, places: Tensor, classes: Sequence[str]) -> list[Picture]:
    return [
        Picture(
            _as_png(found.images[place]),
            classes[int(found.labels[place])],
            classes[int(found.answers[place])],
            float(found.shares[place]),
        )
        for place in places.tolist()
    ]


def _as_png(pixels: Tensor) -> str:
    """Return an image (channel, row, column) of bytes as data URI, scaled down where it is large."""
    from PIL import Image  # comes with matplotlib, which reports need

    picture = Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy())
    picture.thumbnail((_SIDE, _SIDE))
    content = BytesIO()
    picture.save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{b64encode(content.getvalue()).decode()}"
