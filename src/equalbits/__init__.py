"""Binary neural networks whose share of +1 and −1 weights is exact.

The names below are the public ones; the rooms, as ``equalbits.nn``, hold the rest. Each is loaded when first used, so
that ``import equalbits`` costs milliseconds. Packed files run without torch (:func:`load_packed`); the other names need
it, and say so.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ROOM_OF = {
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

_ROOMS = {"functional", "optim", *_ROOM_OF.values()}

__all__ = ["__version__", *_ROOM_OF]


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF or name in _ROOMS:
        try:
            room = import_module(f"equalbits.{_ROOM_OF.get(name, name)}")
            value = room if name in _ROOMS else getattr(room, name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            from equalbits.extras import with_extra

            raise ModuleNotFoundError(f"equalbits.{name} needs torch: {with_extra('train')}", name="torch") from None
        globals()[name] = value
        return value
    raise AttributeError(f"module 'equalbits' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
