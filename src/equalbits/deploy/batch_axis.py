"""Values whose batch is not an axis of its own in front, as inside attention: moved to another place, or folded.

Most rules know only values with the batch in front. The few that models apply in between say in a word (:data:`BATCH`)
what they do elsewhere:

* ``anywhere``: the same for any place of the batch, as functions of single numbers and products along the last axis;
* ``axis``: the same along another axis than that of the batch; ``cut`` slices the axis, ``drop`` removes it;
* ``reshape``: numbers keep their order, whatever the axes;
* ``pool``: each channel by itself, so the parts of an image are more channels; ``norm``: channels are axis 1;
* ``pad``: the last axes; ``own``: the rule takes a folded batch itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from equalbits.deploy.graph import Value
from equalbits.deploy.traced_values import BatchView, Known, ThresholdComparison
from equalbits.deploy.tracer import AXES_AT, BATCH, RULES, Tracer

_WAY_OUT = "keep the batch in front, or export plain torch layers: torch.onnx.export(eb.freeze(model), ...)"


def translate(tracer: Tracer, name: str, arguments: Sequence[object], options: Mapping[str, object]) -> Known | None:
    """Apply the rule ``name`` where one of its arguments, or its output, has the batch elsewhere; None where none has.

    ``name`` has no ``aten.`` in front.
    """
    views = [known for known in _flatten(arguments) if isinstance(known, BatchView)]
    if not views:
        return _plain(tracer, name, arguments)
    if all(view.folded and not view.axis for view in views):
        return _folded(tracer, name, arguments, options)
    if len(views) == 1 and arguments[0] is views[0]:
        return _moved(tracer, name, views[0], arguments[1:], options)
    raise tracer.refuse(f"does {name} on values whose batch axes are in different places: {_WAY_OUT}")


def _plain(tracer: Tracer, name: str, arguments: Sequence[object]) -> Known | None:
    """Fold or move the batch axis of a value that has it in front."""
    value, batch = arguments[0] if arguments else None, tracer.batch
    if not isinstance(value, Value) or tracer.shape is None:
        return None
    if BATCH.get(name) == "reshape" and tracer.shape and tracer.shape[0] != batch and tracer.shape[0] % batch == 0:
        return _reshape(tracer, value)
    if name == "permute.default":
        axes: Sequence[int] = arguments[1]  # type: ignore[assignment]
        order = [axis % (len(value.shape) + 1) for axis in axes]
        return None if order[0] == 0 else _permute(tracer, BatchView(value), order)
    return None


def _reshape(tracer: Tracer, value: Value) -> Known:
    """Reshape to the shape that the trace recorded; numbers keep their order, so a folded axis is split by image."""
    shape = tracer.shape or ()
    if not shape or shape[0] % tracer.batch or math.prod(shape) != tracer.batch * math.prod(value.shape):
        raise tracer.refuse(f"reshapes to {shape}, which mixes images: keep the batch in front")
    parts = shape[0] // tracer.batch
    if parts == 1:
        return tracer.reshape(value, shape[1:])
    return BatchView(tracer.reshape(value, (parts, *shape[1:])), folded=True)


def _permute(tracer: Tracer, view: BatchView, order: Sequence[int]) -> Known:
    kept = order if view.folded else [axis - (axis > view.axis) for axis in order if axis != view.axis]
    return _at(tracer.permute(view.value, kept), list(order).index(view.axis), view)


def _at(value: Value, place: int, view: BatchView) -> Known:
    """Return a value with the batch at ``place``, folded as in ``view``."""
    return BatchView(value, place, view.folded) if place or view.folded else value


def _folded(tracer: Tracer, name: str, arguments: Sequence[object], options: Mapping[str, object]) -> Known:
    """Apply a rule as if the folded axis were two: the batch, and an axis of the value."""
    shape, given = tracer.shape or (), list(arguments)
    first = next(known for known in _flatten(given) if isinstance(known, BatchView)).value
    how = BATCH.get(name, "")
    if how == "reshape":
        return _reshape(tracer, first)
    if name == "permute.default":
        axes: Sequence[int] = given[1]  # type: ignore[assignment]
        return _permute(tracer, BatchView(first, folded=True), [axis % len(first.shape) for axis in axes])
    if how == "own":
        own: Known = RULES[f"aten.{name}"](tracer, *given, **options)
        return own
    if how == "pool":
        return _pool(tracer, name, first, given[1:], options)
    if how == "pad" and any(given[1][2 * len(first.shape) - 2 :]):  # type: ignore[index]
        raise tracer.refuse("pads the batch: a packed network treats each image by itself")
    if how == "norm":  # its channels are axis 1 of the value, and the rule takes them in front
        normed = RULES[f"aten.{name}"](tracer, tracer.move_axis(first, 1, 0), *given[1:])
        several = isinstance(normed, tuple)
        view = BatchView(tracer.move_axis(normed[0] if several else normed, 0, 1), folded=True)
        return (view,) if several else view  # type: ignore[return-value]
    if name == "index.Tensor" and given[1][0] is None:  # type: ignore[index]
        given[1] = [None, *given[1]]  # type: ignore[misc]
    elif how in ("axis", "cut", "drop") and len(given) > (at := AXES_AT[name]):
        given[at] = _behind_batch(tracer, given[at], BatchView(first, folded=True))
    elif how not in ("anywhere", "pad"):
        raise tracer.refuse(f"does {name} on a batch folded with another axis: {_WAY_OUT}")
    if not shape or shape[0] % tracer.batch:
        raise tracer.refuse(f"returns shape {shape} for {tracer.batch} images: the batch must stay in front")
    tracer.shape = (tracer.batch, shape[0] // tracer.batch, *shape[1:])
    made: Known = RULES[f"aten.{name}"](tracer, *_unwrap(given), **options)
    return _rewrap(made)


def _pool(tracer: Tracer, name: str, value: Value, rest: Sequence[object], options: Mapping[str, object]) -> Known:
    """Pool each part of an image."""
    parts, channels, *sizes = value.shape
    *_, rows, columns = tracer.shape or ()
    tracer.shape = (tracer.batch, parts * channels, rows, columns)
    made = RULES[f"aten.{name}"](tracer, tracer.reshape(value, (parts * channels, *sizes)), *rest, **options)
    several = isinstance(made, tuple)
    pooled = made[0] if several else made
    view = BatchView(tracer.reshape(pooled, (parts, channels, *pooled.shape[1:])), folded=True)
    return (view, *made[1:]) if several else view  # type: ignore[return-value]


def _behind_batch(tracer: Tracer, axes: object, view: BatchView) -> object:
    """Return axes of a view as axes of its value with the batch in front."""
    if isinstance(axes, int):
        axis = axes % (len(view.value.shape) + (not view.folded))
        if axis == view.axis:
            raise tracer.refuse("works along the batch: a packed network treats each image by itself")
        return axis + 1 if view.folded else axis + (axis < view.axis)
    return [_behind_batch(tracer, axis, view) for axis in axes] if isinstance(axes, list | tuple) else axes


def _moved(tracer: Tracer, name: str, view: BatchView, rest: Sequence[object], options: Mapping[str, object]) -> Known:
    """Apply a rule with the batch in front, and put it back to its place."""
    rank, place, rest, how = len(view.value.shape) + (not view.folded), view.axis, [*rest], BATCH.get(name, "")
    if name == "permute.default":
        return _permute(tracer, view, [axis % rank for axis in rest[0]])  # type: ignore[attr-defined]
    if how in ("cut", "drop"):
        at = AXES_AT[name] - 1
        rest = rest if len(rest) > at else [*rest, 0]
        axes, rest[at] = rest[at], _behind_batch(tracer, rest[at], view)
        if how == "drop":
            place -= sum(axis % rank < place for axis in ([axes] if isinstance(axes, int) else axes))  # type: ignore[attr-defined]
    elif how == "reshape":
        return _reshape_behind(tracer, view)
    else:
        only_numbers = all(not isinstance(known, Tensor) or known.numel() == 1 for known in rest)
        apart = only_numbers or name in ("linear.default", "layer_norm.default")
        if how != "anywhere" or view.folded or place == rank - 1 or not apart:
            raise tracer.refuse(f"does {name} while the batch is axis {place}: {_WAY_OUT}")
    shape = tracer.shape or ()
    own = (shape[place] // tracer.batch,) if view.folded else ()
    tracer.shape = (tracer.batch, *shape[:place], *own, *shape[place + 1 :])
    made: Known | tuple[Value, ...] = RULES[f"aten.{name}"](tracer, view.value, *rest, **options)
    if isinstance(made, tuple):
        return tuple(_at(value, place, view) for value in made)  # type: ignore[return-value]
    return _at(made, place, view) if isinstance(made, Value) else made


def _reshape_behind(tracer: Tracer, view: BatchView) -> Known:
    """Reshape from the batch on, to the shape that the trace recorded; the axes before the batch stay."""
    shape, axis, batch = tracer.shape or (), view.axis, tracer.batch
    before, after = shape[:axis], shape[axis + 1 :]
    if before != view.value.shape[:axis] or math.prod(shape) != batch * math.prod(view.value.shape):
        raise tracer.refuse(f"reshapes to {shape} while the batch is axis {axis}: keep the batch in front")
    if shape[axis] % batch:
        raise tracer.refuse(f"reshapes to {shape}, which mixes images: keep the batch in front")
    parts = shape[axis] // batch
    inner = (*before, *after) if parts == 1 else (*before, parts, *after)
    return BatchView(tracer.reshape(view.value, inner), axis, parts > 1)


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
    if isinstance(made, ThresholdComparison):
        return replace(made, folded=True)
    return BatchView(made, folded=True) if isinstance(made, Value) else made
