"""Binary neural networks whose share of +1 and −1 weights is exact.

``__all__`` lists the public names; subpackages such as ``equalbits.nn`` hold the rest. Each name is imported on first
use, which keeps ``import equalbits`` fast. :func:`load_packed` runs without torch; every other name needs it, and
raises an error that says so where torch is missing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "nn": (
        *("Sign", "IRNet", "BiHalf", "PrunedBiHalf", "SignActivation"),
        *("BinaryConv1d", "BinaryConv2d", "BinaryConvTranspose2d", "BinaryLinear"),
        *("binarize_", "freeze", "inner_layers", "all_layers", "set_progress"),
    ),
    "models": ("create_model", "list_models", "register_model"),
    "data": ("load_dataset", "Loader"),
    "training": ("TrainConfig", "train", "evaluate"),
    "analysis": ("audit", "summarize"),
    "deploy": ("pack", "PackError"),
    "runtime": ("load_packed",),
    "recipes": ("get_recipe", "run_recipe", "load_run"),
    "paper": ("reproduce",),
}
_PACKAGE_OF = {name: package for package, names in _NAMES.items() for name in names}
_PACKAGES = {"functional", "optim", *_NAMES}

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
