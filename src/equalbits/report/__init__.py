"""HTML report of any output folder, and the table and plot of a comparison."""

from equalbits.report.comparison_plot import draw_comparison as draw_comparison
from equalbits.report.comparison_table import comparison_page as comparison_page
from equalbits.report.comparison_table import describe_precision as describe_precision
from equalbits.report.comparison_table import markdown as markdown
from equalbits.report.comparison_table import text_table as text_table
from equalbits.report.comparison_table import write_markdown as write_markdown
from equalbits.report.html_page import report_page as report_page
from equalbits.report.html_page import write_report as write_report
