"""Export a packed network as one web page that runs it: the engine as WebAssembly, the plan and the weights."""

from equalbits.runtime.export.web.page import web_page as web_page
from equalbits.runtime.export.web.plan import plan_block as plan_block
