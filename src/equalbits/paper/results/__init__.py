"""Kept measurements and the pages generated from them: docs/results.md and the README's table."""

from equalbits.paper.results.results_page import keep_items, write_results_page

__all__ = ["keep_items", "write_results_page"]
