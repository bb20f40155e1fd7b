"""Every registered network trains through the command."""

import json

import pytest

from equalbits.models import list_models

# The smallest each allows: (side of the images, options).
SMALLEST = {
    "conv2": (8, {"width": 0.05}),
    "conv4": (8, {"width": 0.05}),
    "conv6": (8, {"width": 0.05}),
    "conv8": (16, {"width": 0.05}),
    "resnet*": (8, {"width": 0.0625}),
    "imagenet_*": (32, {"width": 0.0625}),
    "vgg*": (8, {"width": 0.03125}),
    "inception_v3": (9, {}),
    "shufflenet": (8, {}),
}
OF_MODEL = {name: smallest for pattern, smallest in SMALLEST.items() for name in list_models(pattern)}


def test_no_registered_model_is_left_out() -> None:
    assert sorted(OF_MODEL) == list_models()


@pytest.mark.parametrize("name", list_models())
def test_every_model_takes_two_steps_through_the_command(name: str, call, tmp_path) -> None:
    side, options = OF_MODEL[name]
    words = [word for option, value in options.items() for word in ("--set", f"model.options.{option}={value}")]
    (tmp_path / "own.toml").write_text(
        f'epochs = 1\n[model]\nname = "{name}"\n[data]\nname = "synthetic:3x{side}x{side}:3:4"\nbatch_size = 2\n'
        "[optimizer]\nlr = 0.001\n"  # of two images a batch's statistics make deep nets diverge, which is not the point
    )
    code, printed, errors = call(
        "train", tmp_path / "own.toml", *words, "--out", tmp_path / "a", "--device", "cpu", "--json"
    )
    assert (code, errors) == (0, "")
    facts = json.loads(printed)
    assert facts["last"]["train"]["total"] == 4
    assert facts["last"]["test"]["total"] == 1
