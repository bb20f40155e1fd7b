"""Checks the laws of a test file in Triton's interpreter, all in one process."""

import functools
import json
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def print_errors(laws: Mapping[str, Callable[[str], None]]) -> None:
    """Print the traceback of each law as JSON, empty where it holds.

    Triton patches its language before each call of a function and restores it after; here once per function will do.
    Before version 3.7 it converts an array with one axis to an integer, which numpy deprecates and then refuses.
    """
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda value: value.handle.data.item()

    interpreter._patch_lang_tensor = patch_tensor_and_index
    if hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_lang = functools.cache(interpreter._patch_lang)
        interpreter._LangPatchScope.restore = lambda scope: None
    errors = {}
    for name, law in laws.items():
        try:
            law("cpu")
            errors[name] = ""
        except Exception:
            errors[name] = traceback.format_exc()
    print(json.dumps(errors))
