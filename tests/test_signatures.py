"""Functions take at most six parameters, except where a reader knows the longer signature or sees a shorter one."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "equalbits"
MOST = 6

#: Files whose signatures are given: Triton kernels take pointers and sizes, the others mirror torch's operations.
MIRRORED = ("functional/kernels/", "deploy/ops/", "nn/layers.py")
#: Longer signatures that are kept, and the reason.
KEPT = {
    "deploy/pack.py pack": "the options of one file, by keyword",
    "training/loop.py train": "a Trainer as in transformers: separate objects of the caller, by keyword",
    "training/stack.py train_stack": "as train, with a list of each",
    "recipes/train_recipe.py run_recipe": "passes the objects of train on, by keyword",
    "models/convnet.py convnet": "registered as partial(convnet, pairs), which takes six",
    "models/resnet.py imagenet_resnet": "registered as partial(imagenet_resnet, depth), which takes six",
    "models/resnet.py resnet": "the options of one network, named in recipes and their TOML files",
    "nn/methods/pruned.py __init__": "the settings of one method, named in recipes and their TOML files",
    "functional/fused_prelu.py prelu_norm_add_sign": "the tensors of batch_norm, prelu and add, as torch passes them",
    "functional/fused_prelu.py reference_forward": "the schema of a torch operator",
    "functional/fused_prelu.py reference_backward": "the schema of a torch operator",
}


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


@pytest.fixture(scope="module")
def long_signatures() -> dict[str, int]:
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        place = path.relative_to(SRC).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and count_parameters(node) > MOST:
                found[f"{place} {node.name}"] = count_parameters(node)
    return {name: count for name, count in found.items() if not name.startswith(MIRRORED)}


def test_functions_take_at_most_six_parameters(long_signatures: dict[str, int]) -> None:
    assert not long_signatures.keys() - KEPT


def test_every_listed_exception_is_still_needed(long_signatures: dict[str, int]) -> None:
    assert not KEPT.keys() - long_signatures.keys()
