"""Binary neural networks whose share of +1 and −1 weights is exact.

``__all__`` lists the public names; subpackages such as ``equalbits.nn`` hold the rest. Each name is imported on first
use, which keeps ``import equalbits`` fast. :func:`load_packed` runs without torch; every other name needs it, and
raises an error that says so where torch is missing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PACKAGE_OF = {
    "Sign": "nn",
    "IRNet": "nn",
    "BiHalf": "nn",
    "PrunedBiHalf": "nn",
    "SignActivation": "nn",
    "BinaryConv1d": "nn",
    "BinaryConv2d": "nn",
    "BinaryConvTranspose2d": "nn",
    "BinaryLinear": "nn",
    "binarize_": "nn",
    "inner_layers": "nn",
    "all_layers": "nn",
    "set_progress": "nn",
    "create_model": "models",
    "list_models": "models",
    "register_model": "models",
    "load_dataset": "data",
    "Loader": "data",
    "TrainConfig": "training",
    "train": "training",
    "evaluate": "training",
    "audit": "analysis",
    "summarize": "analysis",
    "pack": "deploy",
    "PackError": "deploy",
    "load_packed": "runtime",
    "get_recipe": "recipes",
    "run_recipe": "recipes",
    "reproduce": "paper",
}

_PACKAGES = {"functional", "optim", *_PACKAGE_OF.values()}

__all__ = ["__version__", *_PACKAGE_OF]


def __getattr__(name: str) -> Any:
    if name not in _PACKAGE_OF and name not in _PACKAGES:
        raise AttributeError(f"module 'equalbits' has no attribute {name!r}")
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
