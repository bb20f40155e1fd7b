"""From any torch module to a packed file: traced, packed, and checked before it is returned."""

from equalbits.deploy.steps import PackError
from equalbits.deploy.trace import pack

__all__ = ["PackError", "pack"]
