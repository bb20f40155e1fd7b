"""Type checkers see the real types of ``equalbits.*``: mypy checks this file, and fails where one is Any or missing."""

import ast
from pathlib import Path
from typing import assert_type

import torch

import equalbits as eb


def test_the_root_shows_type_checkers_the_names_that_it_imports_lazily() -> None:
    tree = ast.parse(Path(eb.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {*eb.__all__, *eb._PACKAGES} - {"__version__"}
    assert {"__version__", *eb._PACKAGE_OF} == {*eb.__all__} and len(eb.__all__) == len({*eb.__all__})


def test_types_of_a_first_script() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    assert_type(eb.binarize_(model, eb.BiHalf()), eb.nn.Conversion)
    assert_type(eb.audit(model), eb.analysis.Audit)
    assert_type(eb.summarize(model, (1, 4)), eb.analysis.Summary)
    data = eb.load_dataset("synthetic", split="test")
    assert_type(data, eb.data.Dataset)
    batches = [(torch.randn(2, 4), torch.tensor([0, 1]))]
    history = eb.train(model, batches, eb.TrainConfig(epochs=1), test=batches)
    assert_type(history, eb.training.History)
    assert_type(eb.evaluate(model, batches), eb.training.Score)
    assert_type(eb.get_recipe("fashion-conv2"), eb.recipes.Recipe)
    packed = eb.load_packed(Path(__file__).parent / "golden" / "plain.ebits")
    assert_type(packed, eb.runtime.PackedModel)
    assert_type(eb.create_model("conv2", width=0.05), torch.nn.Module)
    assert_type(eb.BinaryLinear(3, 4), eb.BinaryLinear)
