"""Unrecognized arguments are reported in one line, with a suggestion."""

import pytest


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["trian"], "equalbits: unknown command 'trian'; did you mean 'train'? (see equalbits --help)\n"),
        (["zzz"], "equalbits: unknown command 'zzz'; the commands are demo, train"),
        (
            ["train", "--ot", "x"],
            "train: unrecognized arguments: --ot; did you mean --out? (see equalbits train --help)\n",
        ),
        (["train", "a", "--seed", "3"], "unrecognized arguments: --seed 3; did you mean --set seed=3? (see"),
        (["train", "a", "--lr=0.1"], "unrecognized arguments: --lr=0.1; did you mean --set optimizer.lr=0.1? (see"),
        (["train", "a", "--batch-size", "8"], "; did you mean --set data.batch_size=8? (see"),
        (["train", "a", "--version"], "train: unrecognized arguments: --version (see equalbits train --help)\n"),
        (["train", "a", "--set", "epochs=1", "0.1"], "unrecognized arguments: 0.1 (see"),
        (["train", "a", "--out", ""], "argument --out: the value is empty (see"),
        (["evaluate", ""], "argument DIR|FILE: the value is empty (see"),
        (["list", "--xyz"], "equalbits list: unrecognized arguments: --xyz (see equalbits list --help)\n"),
        (["evaluate"], "equalbits evaluate: the following arguments are required: DIR|FILE"),
        (["evaluate", "a", "--which", "first"], "argument --which: invalid choice: 'first'"),
        (["list", "fruit"], "argument KIND: invalid choice: 'fruit'"),
        (["sweep", "a", "--stack", "x"], "argument --stack: invalid int value: 'x'"),
    ],
)
def test_a_usage_error_exits_with_2(words: list[str], line: str, call) -> None:
    code, printed, errors = call(*words)
    assert (code, printed) == (2, "")
    assert line in errors
    assert len(errors.splitlines()) == 1


def test_embedded_data_needs_no_download_and_case_is_ignored_in_suggestions(call, tmp_path) -> None:
    for words, line in (
        (["download", "fashion"], "fashion needs no download: it is part of the package"),
        (["download", "CIFAR100"], "cannot download 'CIFAR100'; did you mean 'cifar100'?"),
        (["train", "fashion-conv2", "--set", "data.name=CIFAR100"], "no data set 'CIFAR100'; did you mean 'cifar100'?"),
    ):
        code, _, errors = call(*words, "--data", tmp_path)
        assert (code, errors.count(line)) == (1, 1), errors


def test_a_file_given_as_the_directory_of_a_run_is_reported(call, tmp_path) -> None:
    (file := tmp_path / "notes.txt").write_text("x")
    code, _, errors = call("pack", file, tmp_path / "again.ebits")
    assert (code, errors.count(f"{file} is a file: "), errors.count("\n")) == (1, 1, 1)
