"""HTML report of any output folder, and the table and plot of a comparison."""

from equalbits.report.comparison_plot import draw_comparison
from equalbits.report.comparison_table import comparison_page, describe_precision, markdown, text_table, write_markdown
from equalbits.report.html_page import report_page, write_report

__all__ = [
    "comparison_page",
    "describe_precision",
    "draw_comparison",
    "markdown",
    "report_page",
    "text_table",
    "write_markdown",
    "write_report",
]
