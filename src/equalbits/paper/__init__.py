"""The paper's figures, tables and demo: each runs recipes, stores what it measured, then draws."""

from equalbits.paper.claims import HEADER, NO_CLAIM, Claim
from equalbits.paper.demo import (
    DemoCounts,
    demo_recipe,
    demo_summary,
    demo_table,
    is_demo_measured,
    pack_demo,
    run_demo,
)
from equalbits.paper.item import Item, Options, get_item, list_items, reproduce
from equalbits.paper.results import keep_items, write_results_page

__all__ = [
    "HEADER",
    "NO_CLAIM",
    "Claim",
    "DemoCounts",
    "Item",
    "Options",
    "demo_recipe",
    "demo_summary",
    "demo_table",
    "get_item",
    "is_demo_measured",
    "keep_items",
    "list_items",
    "pack_demo",
    "reproduce",
    "run_demo",
    "write_results_page",
]
