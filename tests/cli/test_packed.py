"""A run is packed, inspected and run from its file; the last two without torch."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equalbits._text import size_ratio
from equalbits.cli.pack import written_files
from equalbits.nn import BinaryLayer
from equalbits.recipes import load_run
from equalbits.runtime import NetworkBuilder, PackedModel, Port, load_packed, native, write_network
from equalbits.training import load_checkpoint, save_checkpoint


@pytest.fixture(scope="module")
def packed(trained, tmp_path_factory):
    from equalbits.cli import main

    path = tmp_path_factory.mktemp("packed") / "net.ebits"
    assert main(["pack", str(trained), str(path)]) == 0
    return path


def without_torch(*words: object) -> str:
    """Output of the command on a machine without torch."""
    code = "import sys; sys.modules['torch'] = None; from equalbits.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_packed_run_computes_the_logits_of_its_model(trained, packed, call):
    model = load_run(trained).model
    images = torch.randn(5, 1, 8, 8)
    answer = model(images).detach().numpy()
    assert np.abs(load_packed(packed)(images.numpy()) - answer).max() <= 1e-4 * np.abs(answer).max()


def test_pack_reports_the_size_and_the_effect_of_rounding(trained, tmp_path, call):
    code, printed, errors = call("pack", trained, tmp_path / "a.ebits", "--rest", "float16", "--which", "best")
    assert code == 0
    assert f"{(tmp_path / 'a.ebits').stat().st_size:,} bytes" in printed
    assert "every promised share of +1 exact" in printed
    assert "of 8 images keep their class" in errors


def test_pack_prints_json_and_a_size_that_hardly_differs_is_not_called_larger(trained, tmp_path, call):
    code, printed, _ = call("pack", trained, tmp_path / "a.ebits", "--json")
    facts = json.loads(printed)
    assert code == 0 and facts["bytes"] == (tmp_path / "a.ebits").stat().st_size and facts["exact"] is True
    assert facts["compared"] == "6 of 6 test images"
    test = facts["test"]
    assert test["total"] == 6 and test["accuracy"] == 100 * test["correct"] / 6
    assert size_ratio(1000, 1020) == "as large as" and size_ratio(100, 250) == "2.5 times smaller than"


def test_pack_writes_what_export_writes_and_names_the_command_for_a_packed_file(trained, tmp_path, call):
    code, printed, _ = call("pack", trained, "--out", tmp_path / "net.html")
    assert code == 0 and "net.html: web page, " in printed and "; open it in a browser" in printed
    packed = tmp_path / "net.ebits"
    assert call("pack", trained, packed, "--rest", "int8")[0] == 0
    assert call("export", trained, tmp_path / "a.html", "--rest", "int8")[0] == 0
    for words, line in (
        (("pack", packed, "a.onnx"), f"is packed already: equalbits export {packed} net.onnx converts it"),
        (("pack", "zoo:fashion-conv4", "a.ebits"), "is packed already: equalbits export zoo:fashion-conv4"),
        (("pack", trained), "give one file to write, such as net.ebits, as the second argument or with --out"),
        (("pack", trained, "a.tflite"), "unknown suffix .tflite; use .ebits, .onnx, .xml, .c, .html"),
        (("export", trained, "a.ebits"), "equalbits pack DIR a.ebits writes a packed file"),
        (("export", packed, "a.html", "--rest", "int8"), "--rest int8: "),
    ):
        code, _, errors = call(*words)
        assert (code, errors.count("\n")) == (1, 1) and line in errors


@pytest.mark.parametrize(("name", "package"), [("net.onnx", "onnx"), ("net.xml", "openvino")])
def test_a_run_is_packed_for_other_runtimes_if_installed(name, package, trained, tmp_path, call):
    code, printed, errors = call("pack", trained, tmp_path / name)
    if find_spec(package) is None:
        assert (code, errors.count("\n")) == (1, 1)
        assert errors.startswith(f"equalbits pack: this needs {package}: ") and f"-e '.[{package}]'" in errors
    else:
        written = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert f"{written_files(tmp_path / name)}: " in printed and f", {written:,} bytes; " in printed


def test_a_directory_that_is_not_a_run_is_rejected_in_one_line(tmp_path, call):
    code, _, errors = call("pack", tmp_path, tmp_path / "net.ebits")
    assert code == 1
    assert errors.count("\n") == 1
    assert "is not the folder of a run" in errors


def test_a_packed_file_that_does_not_fit_is_named_and_not_left_behind(trained, tmp_path, call, room_for):
    with room_for(100):
        code, _, errors = call("pack", trained, tmp_path / "net.ebits")
    why = "larger than the disk or `ulimit -f` allows; raise the limit or use another path"
    assert (code, errors) == (1, f"equalbits pack: {tmp_path / 'net.ebits'}: {why}\n") and not list(tmp_path.iterdir())


def test_a_packed_file_is_inspected_without_torch(packed):
    printed = without_torch("inspect", packed)
    assert "5 of 5 layers promise a share of +1; all " in printed and " filters are exact" in printed
    assert "images of 1×8×8, 4 classes" in printed
    facts = json.loads(without_torch("inspect", packed, "--json"))
    assert facts["bytes"] == packed.stat().st_size
    assert facts["holds"] is True
    assert {layer["layer"] for layer in facts["audit"]} == {"conv1", "conv2", "fc1", "fc2", "fc3"}


def test_inspect_prints_the_same_audit_for_a_run_and_its_packed_file(trained, packed, call):
    of_run, of_file = (call("inspect", each)[1].splitlines() for each in (trained, packed))
    start, begin = (
        next(at for at, line in enumerate(lines) if "filters×weights" in line) for lines in (of_run, of_file)
    )
    assert of_run[start:] == of_file[begin:]  # the audit, to the letter
    columns = "layer kind output symbols real bytes MACs 1×32"
    assert all(" ".join(lines[2].split()).startswith(columns) for lines in (of_run, of_file))
    totals = [next(line for line in lines if line.startswith("total")).split() for lines in (of_run, of_file)]
    assert totals[0] == totals[1]


@pytest.mark.parametrize(
    ("method", "shares"),
    [
        ("pruned-bihalf:sparsity=0.9,by=score,p_pos=1.0", "every promised share of +1 exact"),
        ("mpt:sparsity=0.99", "no share of +1 promised"),
        ("pruned-bihalf:sparsity=0.999", "every promised share of +1 exact"),
    ],
)
def test_inspect_prints_the_same_audit_for_a_pruned_run_and_its_packed_file(method, shares, recipe, tmp_path, call):
    out, file = tmp_path / "a", tmp_path / "net.ebits"
    assert call("train", recipe, "--set", f"model.weight_quantizer={method}", "--out", out, "--device", "cpu")[0] == 0
    model = load_run(out).model
    real = 4 * sum(tensor.numel() for name, tensor in model.named_parameters() if not name.endswith("scores"))
    code, packed, _ = call("pack", out, file)
    times = f"{real / file.stat().st_size:.1f} times smaller than its parameters in float32"
    assert (code, times in packed, packed.rstrip().endswith(shares)) == (0, True, True)
    of_run, of_file = (call("inspect", path)[1].split("\n\n")[-1] for path in (out, file))
    assert of_run == of_file and "nan" not in of_file and "-0.0000" not in of_file
    zeros = sum(int((layer.symbols() == 0).sum()) for layer in model.modules() if isinstance(layer, BinaryLayer))
    assert f"\n{zeros:,} of " in of_file


def test_run_prints_the_top_classes_without_torch(packed, tmp_path):
    images = np.random.default_rng(0).normal(size=(2, 1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", images)
    found = json.loads(without_torch("run", packed, tmp_path / "x.npy", "--top", 3, "--json"))
    model = load_packed(packed)
    for number, logits in enumerate(model(images)):
        answer = found[f"{tmp_path / 'x.npy'}[{number}]"]
        assert answer[0]["class"] == model.network.classes[logits.argmax()]
        assert [entry["share"] for entry in answer] == sorted((e["share"] for e in answer), reverse=True)
        assert len(answer) == 3


def test_an_image_of_any_size_is_resized(packed, tmp_path, call):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "exact.png")
    Image.new("RGB", (31, 17), (200, 10, 10)).save(tmp_path / "large.jpg")
    code, printed, errors = call("run", packed, tmp_path / "exact.png", tmp_path / "large.jpg")
    assert (code, errors) == (0, "")
    assert printed.count("%") == 2 * 4
    found = json.loads(call("run", packed, tmp_path / "exact.png", "--json")[1])
    logits = load_packed(packed)(pixels[None])
    assert found[str(tmp_path / "exact.png")][0]["logit"] == pytest.approx(float(logits.max()), rel=1e-5)


def test_control_characters_in_names_are_escaped(tmp_path, call):
    build = NetworkBuilder((1, 2, 2))
    x = build.add("flatten", build.image)
    build.add_binary("linear", x, np.ones((2, 4)), name="layer\x1b[2J")
    network = build.finish(classes=["cat\n", "\x1b]0;dog\x07ö"])
    PackedModel(network).save(tmp_path / "net.ebits")
    np.save(tmp_path / "x.npy", np.ones((1, 2, 2), np.float32))
    code, printed, _ = call("run", tmp_path / "net.ebits", tmp_path / "x.npy")
    assert (code, len(printed.splitlines())) == (0, 3)
    assert r"50.00%  cat\n" in printed and r"50.00%  \x1b]0;dog\x07ö" in printed
    code, printed, _ = call("inspect", tmp_path / "net.ebits")
    assert code == 0 and r"layer\x1b[2J" in printed and "\x1b" not in printed
    if native.BUILT is not None:
        printed = call("bench", tmp_path / "net.ebits", "--layers", "--seconds", 0)[1]
        assert r"layer\x1b[2J (1×32 bit)" in printed and "\x1b" not in printed
    found = json.loads(call("run", tmp_path / "net.ebits", tmp_path / "x.npy", "--json")[1])
    assert found[str(tmp_path / "x.npy")][0]["class"] == "cat\n"


def test_a_run_given_as_packed_file_suggests_packing_it(trained, call):
    code, _, errors = call("bench", trained)
    line = f"equalbits bench: {trained} is a directory: pack it first: equalbits pack {trained} net.ebits\n"
    assert (code, errors) == (1, line)


def test_invalid_images_and_packed_files_are_rejected_in_one_line(packed, tmp_path, call):
    (tmp_path / "text.png").write_text("no picture")
    np.save(tmp_path / "odd.npy", np.zeros((3, 3), np.float32))
    for words, rule in (
        (
            ("run", packed, tmp_path / "text.png"),
            "is not a readable image or .npy file: save it as one of BMP, GIF,",
        ),
        (("run", packed, tmp_path / "odd.npy"), "the model takes (batch, 1, 8, 8)"),
        (("run", tmp_path / "odd.npy", tmp_path / "odd.npy"), "not a packed model"),
        (("inspect", tmp_path / "text.png"), f"{tmp_path / 'text.png'}: "),
        (("inspect", tmp_path / "no.ebits"), f"{tmp_path / 'no.ebits'} does not exist"),
        (("run", packed, tmp_path / "odd.npy", "--top", "0"), "--top 0 must be at least 1"),
    ):
        code, _, errors = call(*words)
        assert code == 1, words
        assert rule in errors
        assert errors.count("\n") == 1


def test_postscript_is_never_executed(packed, tmp_path, call, monkeypatch):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/run\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    assert call("run", packed, tmp_path / "a.png")[0] == 1
    assert not (tmp_path / "run").exists()


def test_inputs_of_linear_layers_can_be_packed_as_int8(trained, tmp_path, call):
    code, printed, errors = call("pack", trained, tmp_path / "a.ebits", "--linear-inputs", "int8")
    assert code == 0, errors
    assert "linear_inputs='int8': 8 of 8 images keep their class; logits change by up to" in errors
    assert b"input_bits=8" in (tmp_path / "a.ebits").read_bytes()
    assert "same class as the model for 6 of 6 test images, accuracy " in printed


def test_activations_are_rounded_with_ranges_from_training_images(trained, tmp_path, call):
    code, printed, errors = call("pack", trained, tmp_path / "a.ebits", "--activations", "int8")
    assert code == 0
    assert "activations='int8': 8 of 8 images keep their class" in errors
    assert "calibration images keep the class of the exact file" in errors
    assert "test images, accuracy" in printed
    assert b"quantize gain=" in (tmp_path / "a.ebits").read_bytes()


@pytest.mark.parametrize(
    ("name", "rule"),
    [("x.tflite", "use .ebits, .onnx, .xml, .c, .html"), ("net.onx", ".onx"), ("net", "call it net.ebits")],
)
def test_an_unknown_suffix_is_rejected(name, rule, trained, tmp_path, call):
    code, _, errors = call("pack", trained, tmp_path / name)
    assert (code, errors.count("\n")) == (1, 1)
    assert str(tmp_path / name) in errors and rule in errors
    assert not list(tmp_path.iterdir())


def test_invalid_images_are_named(packed, tmp_path, call):
    image = np.zeros((1, 8, 8), np.float32)
    for name, number in (("nan", np.nan), ("inf", -np.inf), ("large", 1e300)):
        np.save(tmp_path / f"{name}.npy", image.astype(np.float64) + number)
    np.save(tmp_path / "int.npy", image.astype(np.int64))
    np.save(tmp_path / "none.npy", image[None][:0])
    np.save(tmp_path / "obj.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "many", a=image)
    (tmp_path / "many.npz").rename(tmp_path / "many.npy")
    np.save(tmp_path / "cut.npy", image)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-9])
    (tmp_path / "text.npy").write_text("no array")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:900])
    for name, rule in (
        ("nan.npy", "not finite"),
        ("inf.npy", "not finite"),
        ("large.npy", "not finite"),
        ("int.npy", "give float32, or uint8"),
        ("obj.npy", "is not an array of numbers"),
        ("text.npy", "is not an array of numbers"),
        ("none.npy", "holds no image"),
        ("many.npy", "holds several arrays"),
        ("cut.npy", "is truncated or damaged"),
        ("cut.png", "is truncated or damaged"),
        ("no.png", "does not exist"),
        ("no/x.npy", "does not exist: give an image file or a .npy file"),
    ):
        code, printed, errors = call("run", packed, tmp_path / name)
        assert (code, printed, errors.count("\n")) == (1, "", 1), name
        assert errors.startswith(f"equalbits run: {tmp_path / name}") and rule in errors


def test_a_better_epoch_than_the_last_is_hinted_at(trained, tmp_path, call):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    facts = json.loads((run / "run.json").read_text())
    for correct, hinted in ((facts["last"]["test"]["correct"], False), (facts["last"]["test"]["correct"] + 1, True)):
        facts["best"]["test"]["correct"] = correct
        (run / "run.json").write_text(json.dumps(facts))
        for words in (("evaluate", run), ("pack", run, tmp_path / "net.ebits")):
            code, _, errors = call(*words)
            assert code == 0 and ("hint: --which best takes the best epoch" in errors) == hinted
    assert "hint" not in call("evaluate", run, "--which", "best")[2]


def test_packing_an_unfinished_run_is_reported(trained, tmp_path, call):
    out = tmp_path / "a"
    shutil.copytree(trained, out)
    assert "not finished" not in call("pack", out, tmp_path / "done.ebits")[2]
    (out / "run.json").unlink()
    tensors, facts = load_checkpoint(out / "last.safetensors")
    save_checkpoint(out / "last.safetensors", tensors, {**facts, "epoch": 1, "batch": 0})  # as if stopped half-way
    code, _, errors = call("pack", out, tmp_path / "half.ebits")
    assert (code, errors) == (0, f"{out} is not finished: epoch 1 of 2\n")
    assert (tmp_path / "half.ebits").read_bytes() == (tmp_path / "done.ebits").read_bytes()
    (out / "last.safetensors").unlink()
    assert call("pack", out, tmp_path / "best.ebits", "--which", "best")[0] == 0


def test_commands_take_a_file_of_several_lengths(tmp_path, call):
    file = Path(__file__).parents[1] / "golden" / "lengths.ebits"
    code, printed, _ = call("inspect", file)
    assert code == 0 and "images of 4×1×8, lengths 2 to 8\n" in printed
    assert json.loads(call("inspect", file, "--json")[1])["lengths"] == [2, 8]
    images = np.random.default_rng(0).integers(-8, 9, (3, 4, 1, 5)).astype(np.float32) / 8
    np.save(tmp_path / "short.npy", images)
    code, printed, _ = call("run", file, tmp_path / "short.npy", "--json")
    best = [top[0]["logit"] for top in json.loads(printed).values()]
    assert code == 0 and best == pytest.approx(load_packed(file)(images).max(axis=1).tolist())
    np.save(tmp_path / "long.npy", np.zeros((1, 4, 1, 9), np.float32))
    code, _, errors = call("run", file, tmp_path / "long.npy")
    assert code and "images has length 9: the model takes 2 to 8" in errors
    assert call("bench", file, "--seconds", "0.05")[0] == 0
    code, printed, _ = call("export", file, tmp_path / "net.onnx")
    assert code == 0 and "the same logits as the packed network" in printed


def test_a_network_of_ids_is_timed_and_exported(tmp_path, call):
    build = NetworkBuilder((1, 1, 12))
    ids = build.add("flatten", build.add("slice", build.image, start=(0, 0, 0), stop=(1, 1, 8), step=(1, 1, 1)))
    table = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    build.add("flatten", build.add("embedding", ids, table=table))
    network = build.finish(inputs=(Port("ids", (8,), 50), Port("mask", (4,))))
    write_network(network, tmp_path / "net.ebits")
    for more in ((), ("--batch", "3"), ("--engine", "numpy"), ("--layers",) * (native.BUILT is not None)):
        code, printed, errors = call("bench", tmp_path / "net.ebits", "--seconds", "0.02", "--json", *more)
        assert code == 0 and json.loads(printed)["images_per_second"] > 0, errors
    pytest.importorskip("onnx")
    code, printed, errors = call("export", tmp_path / "net.ebits", tmp_path / "net.onnx")
    assert code == 0 and "the same logits as the packed network" in printed, errors
