"""Kept measurements and the pages generated from them: docs/results.md and the README's table."""

from equalbits.paper.results.results_page import keep_items as keep_items
from equalbits.paper.results.results_page import write_results_page as write_results_page
