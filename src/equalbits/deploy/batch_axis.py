"""Values whose batch is not an axis of its own in front, as inside attention: moved to another place, or folded.

Most rules know only values with the batch in front. The few that models apply in between say in a word
(:attr:`TraceRule.batch <equalbits.deploy.tracer.TraceRule>`) what they do elsewhere:

* ``anywhere``: the same for any place of the batch, as functions of single numbers and products along the last axis;
* ``axis``: the same along another axis than that of the batch; ``cut`` slices the axis, ``drop`` removes it;
* ``reshape``: numbers keep their order, whatever the axes;
* ``pool``: each channel by itself, so the parts of an image are more channels; ``norm``: channels are axis 1;
* ``pad``: the last axes; ``own``: the rule takes a folded batch itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from equalbits.deploy.traced_values import BatchView, Known, StepFunction, Value
from equalbits.deploy.tracer import Tracer, TraceRule

_WAY_OUT = "keep the batch in front, or export plain torch layers: torch.onnx.export(eb.freeze(model), ...)"
_PAIRS = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor")
_PRODUCTS = ("matmul.default", "mm.default", "bmm.default")


def apply_rule(tracer: Tracer, rule: TraceRule, arguments: Sequence[Any], options: Mapping[str, Any]) -> Known:
    """Apply a rule, wherever the batch of its arguments and of its output is."""
    views = [known for known in _flatten(arguments) if isinstance(known, BatchView)]
    if not views:
        return _plain(tracer, rule, arguments, options)
    view = views[0]
    if tracer.operation == "permute.default":
        return _permute(tracer, view, _count_axes(view, arguments[1]))
    if rule.batch == "reshape":
        return _reshape(tracer, view)
    if tracer.operation == "slice.Tensor" and tracer.shape == _shape(tracer, view):
        return view  # older versions of torch trace x[:, :1] as a slice of each axis
    if all(other.folded and not other.axis for other in views):
        return _folded(tracer, rule, view, arguments, options)
    same_place = len({(other.axis, other.folded, len(other.value.shape)) for other in views}) == 1
    if arguments[0] is view and (len(views) == 1 or (same_place and tracer.operation in _PAIRS)):
        return _moved(tracer, rule, view, _unwrap(list(arguments[1:])), options)
    if tracer.operation in _PRODUCTS and isinstance(arguments[0], Tensor):
        return _multiply_from_left(tracer, rule, arguments[0], view)
    raise tracer.refuse(f"does {tracer.operation} on values whose batch axes are in different places: {_WAY_OUT}")


def _plain(tracer: Tracer, rule: TraceRule, arguments: Sequence[Any], options: Mapping[str, Any]) -> Known:
    """Apply a rule to values with the batch in front, which a reshape or a permutation may move or fold."""
    if arguments and isinstance(arguments[0], Value):
        view = BatchView(arguments[0])
        if tracer.operation == "permute.default" and (order := _count_axes(view, arguments[1]))[0] != 0:
            return _permute(tracer, view, order)
        in_front = tracer.shape[:1] == (tracer.batch,)
        if rule.batch == "reshape" and not in_front and _find_batch(tracer, view) is not None:
            return _reshape(tracer, view)
    made: Known = rule.function(tracer, *arguments, **options)
    return made


def _find_batch(tracer: Tracer, view: BatchView) -> int | None:
    """Return the axis of the output of a reshape that holds the batch: behind as many numbers as before."""
    shape, before = tracer.shape, math.prod(view.value.shape[: view.axis])
    places = (axis for axis in range(len(shape)) if math.prod(shape[:axis]) == before)
    return next((axis for axis in places if shape[axis] % tracer.batch == 0), None)


def _reshape(tracer: Tracer, view: BatchView) -> Known:
    """Reshape to the shape that the trace recorded; numbers keep their order, so a folded axis is split by image."""
    shape, axis = tracer.shape, _find_batch(tracer, view)
    if axis is None or math.prod(shape) != tracer.batch * math.prod(view.value.shape):
        raise tracer.refuse(f"reshapes to {shape} while the batch is axis {view.axis}: keep the batch in front")
    parts = shape[axis] // tracer.batch
    own = (parts,) if parts > 1 else ()
    made = tracer.reshape(view.value, (*shape[:axis], *own, *shape[axis + 1 :]))
    return _at(made, axis, folded=parts > 1)


def _count_axes(view: BatchView, axes: Sequence[int]) -> list[int]:
    """Return axes of torch's shape, counted from 0."""
    return [axis % (len(view.value.shape) + (not view.folded)) for axis in axes]


def _permute(tracer: Tracer, view: BatchView, order: Sequence[int]) -> Known:
    kept = order if view.folded else [axis - (axis > view.axis) for axis in order if axis != view.axis]
    return _at(tracer.permute(view.value, kept), list(order).index(view.axis), folded=view.folded)


def _at(value: Value, place: int, *, folded: bool) -> Known:
    """Return a value with the batch at ``place``."""
    return BatchView(value, place, folded) if place or folded else value


def _folded(
    tracer: Tracer, rule: TraceRule, view: BatchView, arguments: Sequence[Any], options: Mapping[str, Any]
) -> Known:
    """Apply a rule as if the folded axis were two: the batch, and an axis of the value."""
    shape, given, how, first = tracer.shape, list(arguments), rule.batch, view.value
    if how == "own":
        own: Known = rule.function(tracer, *given, **options)
        return own
    if how == "pool":
        return _pool(tracer, rule, first, given[1:], options)
    if how == "pad" and any(given[1][2 * len(first.shape) - 2 :]):
        raise tracer.refuse("pads the batch: a packed network treats each image by itself")
    if how == "norm":  # its channels are axis 1 of the value, and the rule takes them in front
        normed = rule.function(tracer, tracer.move_axis(first, 1, 0), *given[1:])
        return _change_first(normed, lambda value: BatchView(tracer.move_axis(value, 0, 1), folded=True))
    if tracer.operation == "index.Tensor" and given[1][0] is None:
        given[1] = [None, *given[1]]
    elif how in ("axis", "cut", "drop") and len(given) > rule.axes_at:
        given[rule.axes_at] = _behind_batch(tracer, given[rule.axes_at], view)
    elif how not in ("anywhere", "pad"):
        raise tracer.refuse(f"does {tracer.operation} on a batch folded with another axis: {_WAY_OUT}")
    if not shape or shape[0] % tracer.batch:
        raise tracer.refuse(f"returns shape {shape} for {tracer.batch} images: the batch must stay in front")
    tracer.shape = (tracer.batch, shape[0] // tracer.batch, *shape[1:])
    made: Known = rule.function(tracer, *_unwrap(given), **options)
    return _rewrap(made)


def _pool(tracer: Tracer, rule: TraceRule, value: Value, rest: Sequence[Any], options: Mapping[str, Any]) -> Known:
    """Pool each part of an image."""
    parts, channels, *sizes = value.shape
    *_, rows, columns = tracer.shape
    tracer.shape = (tracer.batch, parts * channels, rows, columns)
    made = rule.function(tracer, tracer.reshape(value, (parts * channels, *sizes)), *rest, **options)
    return _change_first(
        made, lambda pooled: BatchView(tracer.reshape(pooled, (parts, channels, *pooled.shape[1:])), folded=True)
    )


def _change_first(made: Any, change: Callable[[Value], BatchView]) -> Known:
    """Change the output of a rule, or the first of several outputs."""
    return (change(made[0]), *made[1:]) if isinstance(made, tuple) else change(made)  # type: ignore[return-value]


def _behind_batch(tracer: Tracer, axes: object, view: BatchView) -> object:
    """Return axes of a view as axes of its value with the batch in front."""
    if isinstance(axes, int):
        (axis,) = _count_axes(view, [axes])
        if axis == view.axis:
            raise tracer.refuse("works along the batch: a packed network treats each image by itself")
        return axis + 1 if view.folded else axis + (axis < view.axis)
    return [_behind_batch(tracer, axis, view) for axis in axes] if isinstance(axes, list | tuple) else axes


def _moved(tracer: Tracer, rule: TraceRule, view: BatchView, rest: Sequence[Any], options: Mapping[str, Any]) -> Known:
    """Apply a rule with the batch in front, and put it back to its place."""
    place, rest = view.axis, [*rest]
    if rule.batch in ("cut", "drop"):
        at = rule.axes_at - 1
        rest = rest if len(rest) > at else [*rest, 0]
        axes, rest[at] = rest[at], _behind_batch(tracer, rest[at], view)
        if rule.batch == "drop":
            place -= sum(axis < place for axis in _count_axes(view, [axes] if isinstance(axes, int) else axes))
    else:
        only_numbers = all(not isinstance(known, Tensor) or known.numel() == 1 for known in rest)
        apart = only_numbers or tracer.operation in ("linear.default", "layer_norm.default", *_PRODUCTS)
        if rule.batch != "anywhere" or place == _count_axes(view, [-1])[0] or not apart:
            raise tracer.refuse(f"does {tracer.operation} while the batch is axis {place}: {_WAY_OUT}")
        if tracer.operation in _PRODUCTS and not view.folded:  # a matrix of one row
            sizes = view.value.shape
            view = BatchView(tracer.reshape(view.value, (*sizes[:place], 1, *sizes[place:])), place, folded=True)
    shape = tracer.shape
    own = (shape[place] // tracer.batch,) if view.folded else ()
    tracer.shape = (tracer.batch, *shape[:place], *own, *shape[place + 1 :])
    made: Known | tuple[Value, ...] = rule.function(tracer, view.value, *rest, **options)
    if isinstance(made, tuple):
        return tuple(_at(value, place, folded=view.folded) for value in made)  # type: ignore[return-value]
    if isinstance(made, StepFunction):
        return replace(made, axis=place, folded=view.folded)
    return _at(made, place, folded=view.folded) if isinstance(made, Value) else made


def _multiply_from_left(tracer: Tracer, rule: TraceRule, matrices: Tensor, view: BatchView) -> Known:
    """Multiply constant matrices by a value: the transposed product from the right, transposed again."""
    *lead, rows, columns = tracer.shape
    turned = [*range(len(lead)), len(lead) + 1, len(lead)]
    tracer.shape = (*lead, columns, rows)
    made = apply_rule(tracer, rule, (_permute(tracer, view, turned), matrices.mT), {})
    return _permute(tracer, made if isinstance(made, BatchView) else BatchView(tracer.value(made)), turned)


def _shape(tracer: Tracer, view: BatchView) -> tuple[int, ...]:
    """Return torch's shape of a view."""
    before, rest, batch = view.value.shape[: view.axis], view.value.shape[view.axis :], tracer.batch
    return (*before, batch * rest[0], *rest[1:]) if view.folded else (*before, batch, *rest)


def _flatten(arguments: object) -> list[object]:
    if isinstance(arguments, list | tuple):
        return [known for part in arguments for known in _flatten(part)]
    return [arguments]


def _unwrap(known: Any) -> Any:
    if isinstance(known, list | tuple):
        return [_unwrap(part) for part in known]
    return known.value if isinstance(known, BatchView) else known


def _rewrap(made: Known | tuple[Known, ...]) -> Known:
    if isinstance(made, tuple):
        return tuple(map(_rewrap, made))  # type: ignore[return-value]
    if isinstance(made, StepFunction):
        return replace(made, folded=True)
    return BatchView(made, folded=True) if isinstance(made, Value) else made
