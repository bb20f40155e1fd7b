"""The paper's figures, tables and demo: each runs recipes, stores what it measured, then draws."""

from equalbits._claim import HEADER as HEADER
from equalbits._claim import Claim as Claim
from equalbits.paper.demo import demo_recipe as demo_recipe
from equalbits.paper.demo import demo_summary as demo_summary
from equalbits.paper.demo import demo_table as demo_table
from equalbits.paper.demo import pack_demo as pack_demo
from equalbits.paper.demo import run_demo as run_demo
from equalbits.paper.item import NO_CLAIM as NO_CLAIM
from equalbits.paper.item import Item as Item
from equalbits.paper.item import Options as Options
from equalbits.paper.item import get_item as get_item
from equalbits.paper.item import list_items as list_items
from equalbits.paper.item import reproduce as reproduce
from equalbits.paper.results_page import keep_items as keep_items
from equalbits.paper.results_page import write_results_page as write_results_page
