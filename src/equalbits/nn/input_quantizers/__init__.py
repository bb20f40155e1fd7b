"""Input (activation) quantizers, one per file: its function, its class and its name in the registry.

To add one, add a file: subclass :class:`~equalbits.nn.InputQuantizer`, decorate it with
:func:`~equalbits.nn.register_input_quantizer`, and import the class in ``equalbits/nn/__init__.py``.
"""
