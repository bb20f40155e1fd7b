"""Binary neural networks whose share of +1 and −1 weights is exact.

``__all__`` lists the public names; subpackages such as ``equalbits.nn`` hold the rest. Each name is imported on first
use, which keeps ``import equalbits`` fast. :func:`load_packed` runs without torch; every other name needs it, and
raises an error that says so where torch is missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_PACKAGES = (
    *("functional", "runtime", "nn", "optim", "models", "data", "training", "analysis", "deploy"),
    *("recipes", "paper"),
)
_PACKAGE_OF = {
    **dict.fromkeys(("Sign", "IRNet", "BiHalf", "PrunedBiHalf", "SignActivation"), "nn"),
    **dict.fromkeys(("BinaryConv1d", "BinaryConv2d", "BinaryConvTranspose2d", "BinaryLinear"), "nn"),
    **dict.fromkeys(("binarize_", "adapt_for_binary_inputs_", "freeze"), "nn"),
    **dict.fromkeys(("inner_layers", "all_layers", "set_progress"), "nn"),
    **dict.fromkeys(("create_model", "list_models", "load_real", "register_model"), "models"),
    **dict.fromkeys(("load_dataset", "Loader"), "data"),
    **dict.fromkeys(("TrainConfig", "train", "evaluate"), "training"),
    **dict.fromkeys(("audit", "summarize"), "analysis"),
    **dict.fromkeys(("pack", "PackError"), "deploy"),
    **dict.fromkeys(("load_packed",), "runtime"),
    **dict.fromkeys(("get_recipe", "run_recipe", "load_run"), "recipes"),
    **dict.fromkeys(("save_pretrained", "from_pretrained", "push_to_hub"), "recipes"),
    **dict.fromkeys(("reproduce",), "paper"),
}

if TYPE_CHECKING:
    # The same names for editors and type checkers, which do not run __getattr__. Functions called like their module are
    # imported from it: mypy takes analysis.audit for the module.
    from equalbits import analysis as analysis
    from equalbits import data as data
    from equalbits import deploy as deploy
    from equalbits import functional as functional
    from equalbits import models as models
    from equalbits import nn as nn
    from equalbits import optim as optim
    from equalbits import paper as paper
    from equalbits import recipes as recipes
    from equalbits import runtime as runtime
    from equalbits import training as training
    from equalbits.analysis import summarize as summarize
    from equalbits.analysis.audit import audit as audit
    from equalbits.data import Loader as Loader
    from equalbits.data import load_dataset as load_dataset
    from equalbits.deploy import PackError as PackError
    from equalbits.deploy.pack import pack as pack
    from equalbits.models import create_model as create_model
    from equalbits.models import list_models as list_models
    from equalbits.models import load_real as load_real
    from equalbits.models import register_model as register_model
    from equalbits.nn import BiHalf as BiHalf
    from equalbits.nn import BinaryConv1d as BinaryConv1d
    from equalbits.nn import BinaryConv2d as BinaryConv2d
    from equalbits.nn import BinaryConvTranspose2d as BinaryConvTranspose2d
    from equalbits.nn import BinaryLinear as BinaryLinear
    from equalbits.nn import IRNet as IRNet
    from equalbits.nn import PrunedBiHalf as PrunedBiHalf
    from equalbits.nn import Sign as Sign
    from equalbits.nn import SignActivation as SignActivation
    from equalbits.nn import adapt_for_binary_inputs_ as adapt_for_binary_inputs_
    from equalbits.nn import all_layers as all_layers
    from equalbits.nn import binarize_ as binarize_
    from equalbits.nn import inner_layers as inner_layers
    from equalbits.nn import set_progress as set_progress
    from equalbits.nn.freeze import freeze as freeze
    from equalbits.paper import reproduce as reproduce
    from equalbits.recipes import from_pretrained as from_pretrained
    from equalbits.recipes import get_recipe as get_recipe
    from equalbits.recipes import load_run as load_run
    from equalbits.recipes import push_to_hub as push_to_hub
    from equalbits.recipes import run_recipe as run_recipe
    from equalbits.recipes import save_pretrained as save_pretrained
    from equalbits.runtime import load_packed as load_packed
    from equalbits.training import TrainConfig as TrainConfig
    from equalbits.training import evaluate as evaluate
    from equalbits.training import train as train

__all__ = ["__version__", *_PACKAGE_OF]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _PACKAGE_OF and name not in _PACKAGES:
            from equalbits._text import nearest_name

            nearest = nearest_name(name, __dir__())
            hint = f"; did you mean {nearest!r}?" if nearest and not name.startswith("_") else ""
            raise AttributeError(f"module 'equalbits' has no attribute {name!r}{hint}")
        try:
            package = import_module(f"equalbits.{_PACKAGE_OF.get(name, name)}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            from equalbits._extras import install_hint

            raise ModuleNotFoundError(f"equalbits.{name} needs torch: {install_hint('train')}", name="torch") from None
        value = package if name in _PACKAGES else getattr(package, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
