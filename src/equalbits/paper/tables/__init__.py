"""The tables of the paper, a module each, loaded by name (:func:`equalbits.paper.get_item`)."""
