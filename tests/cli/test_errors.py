"""Errors are reported in one line on stderr, with exit code 1."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from equalbits.models import registry
from equalbits.recipes.experiments.compared_methods import parse_methods
from equalbits.training import save_checkpoint


def refused(answer: tuple[int, str, str], command: str) -> str:
    """The one line of an error."""
    code, printed, errors = answer
    assert code == 1, errors
    assert printed == ""
    (line,) = errors.splitlines()
    assert line.startswith(f"equalbits {command}: ")
    return line


def copied(run: Path, tmp_path: Path) -> Path:
    out = tmp_path / "copy"
    out.mkdir()
    for path in run.iterdir():
        if path.is_file():
            (out / path.name).write_bytes(path.read_bytes())
    return out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["cifar10-conv3"], "no recipe 'cifar10-conv3'; did you mean 'cifar10-conv"),
        (["."], "no recipe '.'; `equalbits list recipes` shows them"),
        (["nothing.toml"], "equalbits train: nothing.toml: no such file; check the path"),
        ([], "give a recipe, such as equalbits train fashion-conv2 (equalbits list shows all)"),
        (["cifar10-conv2", "--data", "/nowhere"], "/nowhere"),
        (["imagenet-resnet18", "--data", "/nowhere"], "/nowhere"),
        (["fashion-conv2", "--device", "cuda:77"], "device='cuda:77' is not there"),
        (["fashion-conv2", "--device", "cpu:3"], "device='cpu:3' is not known"),
        (["Fashion-Conv2x"], "no recipe 'Fashion-Conv2x'; did you mean 'fashion-conv2'?"),
        (["fashion-conv2", "--device", "tpu"], "device='tpu' is not known"),
        (["fashion-conv2", "--set", "epoch=3"], "no setting 'epoch'; did you mean 'epochs'?"),
        (["fashion-conv2", "--set", "model.name=conv3"], "model 'conv3' is not known: did you mean"),
        (["fashion-conv2", "--set", "model.weight_quantizer=bihlaf"], "'bihlaf' is not known: did you mean 'bihalf'"),
        (["fashion-conv2", "--set", "model.options.wide=2"], "option 'wide' is not known: did you mean 'width'"),
        (["fashion-conv2", "--set", "model.options.width=wide"], "model.options.width='wide' must be a number"),
        (
            ["fashion-conv2", "--set", "model.options.num_classes=3"],
            "num_classes=3: leave it out, it follows from",
        ),
        (["fashion-conv2", "--set", "model.options.init=kaiming"], "init=kaiming: set model.init instead"),
        (
            ["fashion-conv2", "--set", "model.weight_quantizer=real"],
            "leave it empty for none, as in model.weight_quantizer=",
        ),
        (
            ["fashion-conv2", "--set", "model.input_quantizer=None"],
            "leave it empty for none, as in model.input_quantizer=",
        ),
        (["fashion-conv2", "--set", "optimizer.name=bop"], "no bits to optimize: binarize it with Bits(), in a recipe"),
        (["fashion-conv2", "--set", "EPOCHS=3"], "no setting 'EPOCHS'; did you mean 'epochs'?"),
        (["fashion-conv2", "--set", "optimizer.lr=inf"], "optimizer.lr=inf must be a finite number, above 0"),
        (["fashion-conv2", "--set", "data.name=mnist"], "no data set 'mnist'"),
        (["fashion-conv2", "--set", "distill.weight=1"], "distill is set but no teacher is given"),
        (["--resume", "/nowhere"], "/nowhere has no run to resume: recipe.toml is missing"),
        (["fashion-conv2", "--resume", "runs/a"], "omit RECIPE and --out"),
    ],
)
def test_train_reports_errors_in_one_line(words: list[str], line: str, call, tmp_path) -> None:
    out = [] if "--resume" in words else ["--out", tmp_path / "a"]
    assert line in refused(call("train", *words, *out), "train")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--vary", "optimizer.lr=1", "--vary", "optimizer.lr=2"], "--vary optimizer.lr is given twice: give all its"),
        (["--vary", "epochs=1", "--set", "epochs=2"], "--set epochs=2 and --vary epochs: omit one of them"),
        (["--vary", "schedule.milestones=[1,2],x"], "schedule.milestones='x' must be a list"),
        (["--vary", "model.weight_quantizer=irnet:t_min=0.1,t_mux=5"], "setting 't_mux' is not known: did you mean"),
        (["--set", "optimizer.lr=1e30"], "by now no weight is finite; nothing was saved before it; lower optimizer.lr"),
        (["--seeds", "0-99999999999"], "--seeds 0-99999999999: more than 10,000 seeds; give fewer"),
    ],
)
def test_sweep_reports_errors_in_one_line(words: list[str], line: str, call, recipe: str, tmp_path) -> None:
    assert line in refused(call("sweep", recipe, *words, "--out", tmp_path / "a", "--device", "cpu"), "sweep")


def test_an_output_directory_that_cannot_be_written_is_named(call, recipe: str, tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    line = refused(call("train", recipe, "--out", tmp_path / "file", "--device", "cpu"), "train")
    assert f"{tmp_path / 'file'} is a file: name a folder" in line
    line = refused(call("train", recipe, "--out", tmp_path / "file" / "inner", "--device", "cpu"), "train")
    assert str(tmp_path / "file" / "inner") in line
    line = refused(call("train", recipe, "--out", "/proc/nowhere", "--device", "cpu"), "train")
    assert line.endswith("/proc/nowhere cannot be created: name a folder elsewhere with --out")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "{}/no.ebits", "a.png"], "{}/no.ebits does not exist"),
        (["run", "{}", "a.png"], "{} is a directory: give a file"),
        (["list", "--show", "{}/no/such.toml"], "the directory {}/no does not exist; create it or use another path"),
        (
            ["list", "--show", "{}/file/such.toml"],
            "{}/file/such.toml: a parent of this path is a file; use another path",
        ),
        (["sweep", "fashion-conv2", "--out", "{}/file"], "{}/file is a file: "),
        (["compare", "--out", "{}/file"], "{}/file is a file: "),
        (["reproduce", "fig6", "--out", "{}/file"], "{}/file is a file: "),
        (["report", "{}/file"], "{}/file is a file: "),
    ],
)
def test_an_invalid_path_is_named(words: list[str], line: str, call, tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    error = refused(call(*(word.format(tmp_path) for word in words)), words[0])
    assert line.format(tmp_path) in error
    assert "[Errno" not in error


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_damaged_results_are_named(content: str, call, recipe: str, tmp_path) -> None:
    words = [recipe, "--seeds", "0", "--out", tmp_path, "--device", "cpu"]
    for command, name in (("sweep", "own/seed0/run.json"), ("compare", "bihalf/seed0/run.json")):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
        line = refused(call(command, *words, *(["--methods", "bihalf"] if command == "compare" else [])), command)
        assert f"{path} is not the record of a run (" in line and line.endswith("delete it to train again")


def test_a_batch_too_small_for_batch_norm_is_reported_with_the_setting(call, recipe: str, tmp_path) -> None:
    words = ["--set", "model.options.batch_norm=true", "--set", "data.batch_size=23", "--device", "cpu"]
    line = refused(call("train", recipe, *words, "--out", tmp_path / "a"), "train")
    assert "batch norm cannot train on one image: choose data.batch_size" in line
    assert "(batch 2 of 2 is: " in line
    words = ["--set", "model.options.batch_norm=true", "--set", "accumulate=24", "--device", "cpu"]
    line = refused(call("train", recipe, *words, "--out", tmp_path / "a"), "train")
    assert "choose data.batch_size and accumulate so that no part of a batch" in line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_behind_a_pipe_is_reported() -> None:
    words = [sys.executable, "-m", "equalbits", "list", "recipes"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "equalbits list: no space left on the disk; free some space and retry\n",
    )


def test_errors_name_the_rank_of_a_distributed_process(call, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(call("train", "nothing"), "train")
    monkeypatch.setenv("RANK", "1")
    refused(call("train", "nothing"), "train (process 1)")


def test_an_unknown_download_suggests_the_nearest_name_and_a_directory(call, tmp_path) -> None:
    line = refused(call("download", "cifar11", "--data", tmp_path), "download")
    assert line.endswith(f"'cifar11'; did you mean 'cifar10'? (copy other data sets to {tmp_path} yourself)")


def test_a_pattern_without_match_is_rejected_and_a_trailing_comma_is_ignored(call) -> None:
    line = refused(call("list", "--match", "nothing*"), "list")
    assert line.endswith("--match nothing*: no name matches; equalbits list shows all")
    code, printed, _ = call("list", "--match", "irnet-stable")
    assert (code, [line.split()[0] for line in printed.splitlines()]) == (0, ["methods:", "irnet-stable"])
    assert parse_methods("sign,") == ["sign"]


def test_a_run_given_as_recipe_suggests_how_to_resume_it(call, recipe: str, trained: Path) -> None:
    line = refused(call("train", trained), "train")
    assert line.endswith(f"resume it with train --resume {trained}, or give {trained}/recipe.toml")
    for slip in (recipe.removesuffix(".toml"), recipe.replace(".toml", ".tml")):
        line = refused(call("sweep", slip), "sweep")
        assert line.endswith(f"no recipe {slip!r}; did you mean the file {recipe}?")


def test_the_directory_of_a_sweep_suggests_a_run_inside(call, trained: Path, tmp_path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "seed0").symlink_to(trained)
    line = refused(call("evaluate", tmp_path), "evaluate")
    assert line.endswith(f"it holds no recipe.toml; name one inside, as {tmp_path / 'own' / 'seed0'}")


@pytest.mark.parametrize("words", [["inspect"], ["export", "--to", "onnx", "--out", "x.onnx"]])
def test_a_packed_file_has_no_best_epoch(words: list[str], call, tmp_path) -> None:
    path = tmp_path / "net.ebits"
    path.write_bytes(b"")
    line = refused(call(*words, path, "--which", "best"), words[0])
    assert line.endswith(f"--which best: {path} is a packed file and has no epochs; omit --which")


def test_a_negative_stack_is_rejected(call, tmp_path) -> None:
    line = refused(call("reproduce", "fig6", "--stack", "-1", "--out", tmp_path), "reproduce")
    assert line.endswith("--stack -1 must be at least 1")


def test_a_real_network_can_be_inspected_and_packed(call, recipe: str, tmp_path) -> None:
    out, file = tmp_path / "a", tmp_path / "net.ebits"
    assert call("train", recipe, "--out", out, "--set", "model.weight_quantizer=", "--device", "cpu")[0] == 0
    code, printed, _ = call("inspect", out)
    assert (code, printed.splitlines()[0]) == (0, "own: conv2, real weights")
    assert printed.endswith("no binary layer: no share of +1 to check\n") and "1.0 times" not in printed
    code, printed, _ = call("pack", out, file)
    assert code == 0 and "1.2 times larger than its parameters" in printed
    assert printed.endswith("\nno binary layer\n")


def test_an_empty_directory_is_not_a_run(call, tmp_path) -> None:
    for command in ("evaluate", "inspect"):
        line = refused(call(command, tmp_path), command)
        assert f"{tmp_path} is not the folder of a run: it holds no recipe.toml" in line


@pytest.mark.parametrize("command", ["evaluate", "inspect"])
@pytest.mark.parametrize("piece", ["last.safetensors", "model.json", "recipe.toml"])
def test_a_missing_or_damaged_file_of_a_run_is_named(command: str, piece: str, call, trained, tmp_path) -> None:
    out = copied(trained, tmp_path)
    (out / piece).write_bytes(b"\x80\x81 no such thing")
    assert str(out / piece) in refused(call(command, out), command)
    (out / piece).unlink()
    assert piece in refused(call(command, out), command)


def test_a_checkpoint_of_another_program_is_rejected(call, trained, tmp_path) -> None:
    out = copied(trained, tmp_path)
    save_checkpoint(out / "last.safetensors", {}, {"other": "thing"})
    assert "cannot resume from" in refused(call("train", "--resume", out), "train")
    assert "holds the weights of another model" in refused(call("evaluate", out), "evaluate")


def test_other_settings_are_rejected_and_the_run_can_still_resume(call, trained, tmp_path) -> None:
    out = copied(trained, tmp_path)
    line = refused(call("train", "--resume", out, "--set", "seed=3", "--device", "cpu"), "train")
    assert "holds a run with seed=0, this one has seed=3" in line
    code, printed, _ = call("train", "--resume", out, "--device", "cpu")
    assert code == 0
    assert printed.startswith("own: last epoch ")
    assert printed.endswith(f"{out} was already finished: nothing to train\n")


def with_a_model_that_raises(monkeypatch, error: Exception) -> list[str]:
    """Arguments that train a custom network which cannot be built."""

    def make(layers: object, num_classes: int, *, in_channels: int, image_size: int, width: float) -> None:
        raise error

    monkeypatch.setitem(registry._BUILDERS, "raises", make)
    return ["--set", "model.name=raises", "--device", "cpu"]


def test_an_unexpected_error_keeps_its_traceback(call, monkeypatch, recipe: str, tmp_path) -> None:
    words = with_a_model_that_raises(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        call("train", recipe, *words, "--out", tmp_path / "a")


def test_an_environment_variable_shows_the_traceback(call, monkeypatch) -> None:
    monkeypatch.setenv("EQUALBITS_TRACEBACK", "1")
    from equalbits.cli import main

    with pytest.raises(ValueError, match="no recipe"):
        main(["train", "nothing"])


def test_out_of_memory_is_reported_with_a_remedy(call, monkeypatch, recipe: str, tmp_path) -> None:
    cpu = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    for error in (torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate"), MemoryError(), cpu):
        words = with_a_model_that_raises(monkeypatch, error)
        line = refused(call("train", recipe, *words, "--out", tmp_path / "a"), "train")
        assert line.endswith("out of memory: lower data.batch_size, set accumulate=2, or use a smaller model")


@pytest.mark.parametrize("words", [["demo"], ["compare", "{}"], ["reproduce", "fig2", "--quick"]])
def test_missing_matplotlib_is_reported_before_training(words, call, recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    command = [word.format(recipe) for word in words]
    line = refused(call(*command, "--out", tmp_path / "a", "--device", "cpu"), words[0])
    assert ": plotting needs matplotlib: install equalbits with the extra plot (" in line
    assert not (tmp_path / "a").exists()


def test_suggested_commands_quote_paths_with_spaces(call, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "a run")
    offered = {
        ("bench", tmp_path / "a run"): f"equalbits pack '{tmp_path}/a run' net.ebits",
        ("train", tmp_path / "a run"): f"train --resume '{tmp_path}/a run', or give '{tmp_path}/a run/recipe.toml'",
        ("train", "cifar10-conv2", "--data", tmp_path / "no data"): f"download cifar10 --data '{tmp_path}/no data'",
    }
    for words, command in offered.items():
        code, _, errors = call(*words)
        assert code == 1 and command in errors, errors


def test_escape_codes_in_a_file_name_do_not_reach_the_terminal(call, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mred\x1b[0m.ebits"
    for words in (("run", path, "a.png"), ("inspect", path), ("train", path.with_suffix(".toml"))):
        code, out, stderr = call(*words)
        assert code == 1 and "\x1b" not in out + stderr and "\\x1b[31mred" in stderr
    path.write_text("no packed file")
    _, _, stderr = call("inspect", path)
    assert "\x1b" not in stderr


@pytest.mark.parametrize(
    "setting",
    [f"model.weight_quantizer=bihalf:p_pos={'-' * 5000}1", f"optimizer.lr={'-' * 5000}", f"epochs={'[' * 5000}"],
)
def test_a_setting_nested_too_deeply_is_refused_in_a_short_line(
    call, recipe: str, tmp_path: Path, setting: str
) -> None:
    code, _, stderr = call("train", recipe, "--out", tmp_path / "a", "--device", "cpu", "--set", setting)
    assert code == 1 and stderr.count("\n") == 1 and len(stderr) < 2200 and "Traceback" not in stderr


def test_a_pipe_given_as_a_picture_is_refused_at_once(call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.png")
    golden = Path(__file__).parents[1] / "golden" / "plain.ebits"
    code, _, stderr = call("run", golden, tmp_path / "x.png")
    assert (code, "x.png is not a file: give an image file or a .npy file" in stderr) == (1, True)
