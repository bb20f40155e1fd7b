"""HTML report of any output folder, and the table and plot of a comparison."""

from equalbits.report.comparison import comparison_page as comparison_page
from equalbits.report.comparison import describe_precision as describe_precision
from equalbits.report.comparison import draw_comparison as draw_comparison
from equalbits.report.comparison import markdown as markdown
from equalbits.report.comparison import text_table as text_table
from equalbits.report.html_page import report_page as report_page
from equalbits.report.html_page import write_report as write_report
