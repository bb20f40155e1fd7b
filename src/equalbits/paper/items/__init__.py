"""The figures and tables of the paper and a few beyond it, a module each (:func:`equalbits.paper.get_item`)."""
