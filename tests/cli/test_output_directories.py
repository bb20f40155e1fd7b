"""An output directory belongs to one command: other commands are rejected and change nothing."""

from pathlib import Path

import pytest

from equalbits.cli import main
from equalbits.recipes import read_recipe


@pytest.fixture(scope="module")
def held(recipe: str, tmp_path_factory) -> Path:
    """A run, a sweep, a comparison and an item, side by side."""
    out = tmp_path_factory.mktemp("held")
    quick = ["--device", "cpu", "--json"]
    assert main(["train", recipe, "--out", str(out / "run"), *quick]) == 0
    assert main(["sweep", recipe, "--out", str(out / "sweep"), *quick]) == 0
    assert main(["compare", recipe, "--methods", "sign", "--seeds", "0", "--out", str(out / "compare"), *quick]) == 0
    assert main(["reproduce", "fig6", "--quick", "--out", str(out / "item"), *quick]) == 0
    return out


HELD = {"run": "a run", "sweep": "a sweep", "compare": "a comparison", "item": "an item of the paper"}


def words_of(kind: str, recipe: str) -> list[str]:
    return {
        "run": ["train", recipe],
        "sweep": ["sweep", recipe],
        "compare": ["compare", recipe, "--methods", "sign", "--seeds", "0"],
        "item": ["reproduce", "fig6", "--quick"],
    }[kind]


@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("wanted", HELD)
def test_an_output_directory_accepts_only_the_command_that_wrote_it(
    wanted: str, kind: str, held, recipe: str, call
) -> None:
    folder = held / kind
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    command = words_of(wanted, recipe)
    code, _, errors = call(*command, "--out", folder, "--device", "cpu")
    if wanted == kind:
        assert code == 0, errors
        return
    assert code == 1
    assert errors == f"equalbits {command[0]}: {folder} holds {HELD[kind]}: give --out another folder\n"
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before


@pytest.mark.parametrize("kind", HELD)
def test_all_items_are_not_written_into_the_directory_of_one_command(kind: str, held, call) -> None:
    folder = held / kind
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    code, _, errors = call("reproduce", "all", "--quick", "--out", folder, "--device", "cpu")
    assert (code, errors) == (1, f"equalbits reproduce: {folder} holds {HELD[kind]}: give --out another folder\n")
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before


def test_a_directory_with_other_runs_and_recipes_can_be_used(recipe: str, call, tmp_path: Path) -> None:
    own = tmp_path / "recipe.toml"
    own.write_text(Path(recipe).read_text())
    assert call("train", own, "--out", tmp_path / "a", "--device", "cpu")[0] == 0
    assert call("sweep", own, "--out", tmp_path, "--device", "cpu")[0] == 0
    code, _, errors = call("demo", "--out", tmp_path / "a")
    assert (code, errors.count("holds a run: give --out another folder")) == (1, 1)


def test_the_seeds_of_a_sweep_and_a_run_do_not_share_a_directory(held: Path, recipe: str, call, tmp_path: Path) -> None:
    for kind, case in (("sweep", "own"), ("compare", "sign")):
        code, _, errors = call("train", recipe, "--out", held / kind / case, "--device", "cpu")
        assert (code, errors.count(f"{case} holds runs of a sweep or a comparison, as seed0: give --out")) == (1, 1)
        assert not (held / kind / case / "recipe.toml").exists()
        (tmp_path / case).symlink_to(held / "run")
        code, _, errors = call(*words_of(kind, recipe), "--out", tmp_path, "--device", "cpu")
        assert (code, errors.count(f"{tmp_path / case} holds a run: give --out another folder")) == (1, 1)
    assert not (held / "run" / "seed0").exists()


@pytest.mark.parametrize("wanted", HELD)
def test_a_finished_demo_is_not_overwritten(wanted: str, recipe: str, call, tmp_path: Path) -> None:
    for name in ("demo.png", "report.html"):
        (tmp_path / name).write_text("of the demo")
    code, _, errors = call(*words_of(wanted, recipe), "--out", tmp_path, "--device", "cpu")
    assert (code, errors.count("holds the demo: give --out another folder")) == (1, 1)


def test_files_of_the_user_are_not_overwritten(recipe: str, call, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("mine")
    code, _, errors = call("train", recipe, "--out", tmp_path, "--device", "cpu")
    assert (code, errors.count("holds a model.json that equalbits did not write: give --out another folder")) == (1, 1)
    assert (tmp_path / "model.json").read_text() == "mine"
    own = tmp_path / "a" / "recipe.toml"
    own.parent.mkdir()
    own.write_text(text := "# mine\n" + Path(recipe).read_text())
    code, _, errors = call("train", own, "--out", own.parent, "--device", "cpu")
    assert (code, errors.count("holds another recipe.toml: give --out another folder")) == (1, 1)
    assert own.read_text() == text


def test_a_run_killed_at_its_start_can_be_restarted(recipe: str, call, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(read_recipe(Path(recipe)).to_toml())  # and no model.json yet
    assert call("train", recipe, "--out", tmp_path, "--device", "cpu")[0] == 0


def test_seeds_and_methods_are_rejected_as_settings(recipe: str, call, tmp_path: Path) -> None:
    for words, way in (
        (["sweep", recipe, "--set", "seed=5"], "--seeds 5"),
        (["sweep", recipe, "--vary", "seed=1,2"], "--seeds 1,2"),
        (["compare", recipe, "--set", "seed=5"], "--seeds 5"),
        (["compare", recipe, "--set", "model.weight_quantizer=sign"], "--methods sign"),
    ):
        code, _, errors = call(*words, "--out", tmp_path / "a", "--device", "cpu")
        assert (code, errors.count(way), errors.count("\n")) == (1, 1, 1)
    assert not (tmp_path / "a").exists()


def test_a_directory_without_a_model_suggests_one_or_explains_why_not(held: Path, call) -> None:
    for folder, inside in ((held, held / "run"), (held / "sweep", held / "sweep" / "own" / "seed0")):
        code, _, line = call("evaluate", folder)
        assert code == 1 and line.endswith(f"it holds no recipe.toml; name one inside, as {inside}\n")
    for folder in (held / "compare", held / "compare" / "sign" / "seed0", held / "item"):
        code, _, line = call("pack", folder, held / "net.ebits")
        assert code == 1 and line.endswith(
            "name one that train or sweep wrote; compare and reproduce keep no weights\n"
        )
