"""The paper's figures and tables, and the demo: each runs recipes, stores what it measured, then draws."""

from equalbits.paper.claims import Claim
from equalbits.paper.demo import run_demo
from equalbits.paper.item import Item, Options, get_item, list_items, reproduce

__all__ = ["Claim", "Item", "Options", "get_item", "list_items", "reproduce", "run_demo"]
