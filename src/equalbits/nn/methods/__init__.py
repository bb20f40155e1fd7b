"""Weight quantizers, one published method per file: its function, its class and its name in the registry.

To add a method, add a file: subclass :class:`~equalbits.nn.WeightQuantizer`, decorate it with
:func:`~equalbits.nn.register_quantizer`, and import the class in ``equalbits/nn/__init__.py``.
"""
