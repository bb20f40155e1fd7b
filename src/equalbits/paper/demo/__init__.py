"""``equalbits demo``: sign, IR-Net and bi-half trained alike in two minutes, their flips and entropy side by side.

The net is the paper's Conv2, narrower and on the embedded Fashion-MNIST: the numbers are not the paper's, the effect
is. Every method has the same seed, initial weights, batches and settings.
"""

from equalbits.paper.demo.measure import demo_recipe, is_demo_measured, pack_demo, run_demo
from equalbits.paper.demo.show import DemoCounts, demo_summary, demo_table

__all__ = ["DemoCounts", "demo_recipe", "demo_summary", "demo_table", "is_demo_measured", "pack_demo", "run_demo"]
