"""Checks before a sweep or comparison trains: stacks share images, and invalid cases are refused."""

import shutil
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_recipe import compare, own, sweep

from equalbits.recipes import Recipe
from equalbits.training import CheckpointError, InterruptedTraining


def pictures(root: Path, *classes: str, tests: int = 3) -> Path:
    for split, count in (("train", 4), ("test", tests)):
        for label in classes:
            folder = root / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (9, 9), (40 * number, 99, 7)).save(folder / f"{number}.png")
    return root


def stop(record: object) -> None:
    signal.raise_signal(signal.SIGTERM)


def folder_recipe() -> Recipe:
    data = {"data.name": "imagefolder", "data.resize": 9, "data.crop": 8, "data.workers": 0}
    return own(**data, epochs=1)


def swept(out: Path, root: Path, seeds: Sequence[int], **more: Any) -> Any:
    return sweep(folder_recipe(), out, vary={}, seeds=seeds, root=root, device="cpu", **more)


def stacked(out: Path, root: Path, seeds: Sequence[int]) -> Any:
    return swept(out, root, seeds, stack=2)


def compared(out: Path, root: Path, seeds: Sequence[int]) -> Any:
    return compare(folder_recipe(), out, methods=["sign"], seeds=seeds, root=root, device="cpu")


@pytest.fixture(params=[swept, stacked, compared])
def job(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("seeds", [[0, 1], [0, 1, 2]], ids=["nothing-to-train", "a-seed-more"])
def test_results_on_other_classes_are_not_reused(job: Any, seeds: list[int], tmp_path: Path) -> None:
    job(tmp_path / "out", pictures(tmp_path / "pets", "cat", "dog"), [0, 1])
    before = sorted((tmp_path / "out").rglob("*"))
    cars = pictures(tmp_path / "cars", "car", "van")
    with pytest.raises(
        CheckpointError, match=r"seed0 holds a run on 2 classes \(cat, dog\), this data has 2 \(car, van"
    ):
        job(tmp_path / "out", cars, seeds)
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_counts_of_other_test_images_are_not_taken_for_shares_of_these(job: Any, tmp_path: Path) -> None:
    job(tmp_path / "out", pictures(tmp_path / "few", "cat", "dog"), [0])
    more = pictures(tmp_path / "more", "cat", "dog", tests=5)
    with pytest.raises(CheckpointError, match="8 training and 6 test images, this data has 8 and 10: use the same"):
        job(tmp_path / "out", more, [0, 1])


def test_a_run_resumes_on_moved_data_and_finished_results_need_none(job: Any, tmp_path: Path) -> None:
    pets = pictures(tmp_path / "pets", "cat", "dog")
    job(tmp_path / "out", pets, [0])
    moved = shutil.move(pets, tmp_path / "elsewhere")
    whole = job(tmp_path / "out", Path(moved), [0, 1])
    shutil.rmtree(moved)
    assert job(tmp_path / "out", tmp_path / "gone", [0, 1]) == whole


def test_nets_interrupted_on_other_images_do_not_resume_on_these(tmp_path: Path) -> None:
    pets, cars = pictures(tmp_path / "pets", "cat", "dog"), pictures(tmp_path / "cars", "car", "van")
    jobs = {"sweep": partial(sweep, vary={}), "compare": partial(compare, methods=["sign"])}
    for name, job in jobs.items():
        both: dict[str, Any] = {"stack": 2, "device": "cpu"}
        with pytest.raises(InterruptedTraining):
            job(folder_recipe(), tmp_path / name, seeds=[0, 1], root=pets, reporters_for=lambda _: [stop], **both)
        before = sorted((tmp_path / name).rglob("*"))
        with pytest.raises(CheckpointError, match=r"holds interrupted runs on 2 classes \(cat, dog\), this data has"):
            job(folder_recipe(), tmp_path / name, seeds=[0, 1], root=cars, **both)
        assert sorted((tmp_path / name).rglob("*")) == before
        job(folder_recipe(), tmp_path / name, seeds=[0, 1], root=pets, **both)
        assert not list((tmp_path / name).glob("stack-*"))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("model.options.width", [0.05, -1], "width=-1"),
        ("optimizer.name", ["sgd", "bop"], "no bits to optimize"),
        ("distill.weight", [0.0, 1.0], "distill is set but no teacher is given: set distill.teacher"),
        ("data.name", ["synthetic:1x8x8:4:24", "imagefolder"], "there is no such folder"),
        ("data.hold_out", [4, 24], "leaves nothing to train on"),
    ],
)
@pytest.mark.parametrize("stack", [1, 2])
def test_a_case_that_cannot_be_built_is_refused_before_another_trains(
    name: str, values: list[Any], message: str, stack: int, tmp_path: Path
) -> None:
    reported: list[str] = []
    with pytest.raises(ValueError, match=message):
        sweep(
            own(), tmp_path / "out", vary={name: values}, seeds=[0], stack=stack, root=tmp_path / "none", device="cpu",
            log=reported.append,
        )  # fmt: skip
    assert not reported
    assert not list(tmp_path.iterdir())


def test_a_case_that_cannot_be_built_any_more_still_shows_its_result(tmp_path: Path) -> None:
    vary = {"data.name": ["synthetic:1x8x8:4:24", "imagefolder"], "data.resize": [9], "data.crop": [8]}
    pets = pictures(tmp_path / "pets", "cat", "dog")
    recipe = folder_recipe()
    rows = sweep(recipe, tmp_path / "out", vary=vary, seeds=[0], root=pets, device="cpu")
    shutil.rmtree(pets)
    assert sweep(recipe, tmp_path / "out", vary=vary, seeds=[0], root=pets, device="cpu") == rows
