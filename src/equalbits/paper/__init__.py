"""The paper's figures and tables, and the demo: each runs recipes, stores what it measured, then draws."""

from equalbits.paper.demo import run_demo

__all__ = ["run_demo"]
