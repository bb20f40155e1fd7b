"""From any torch module to a packed file: traced, packed, and checked before it is returned."""

from equalbits.deploy.graph import PackError
from equalbits.deploy.pack import pack

__all__ = ["PackError", "pack"]
