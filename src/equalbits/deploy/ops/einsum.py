"""``einsum``: products along named axes, two operands at a time, each a product of matrices."""

import math
from collections.abc import Sequence
from string import ascii_letters

import torch
from torch import Tensor

from equalbits.deploy.graph import Value
from equalbits.deploy.ops.conv_linear import convolution, linear
from equalbits.deploy.traced_values import BatchView, Known
from equalbits.deploy.tracer import Tracer, rule

#: An operand without its batch, and a letter for each of its axes.
Named = tuple[Value | Tensor, str]


@rule("einsum.default", batch="own")
def einsum(tracer: Tracer, equation: str, operands: Sequence[Known], **_: object) -> Known:
    """Multiply and sum along the axes that the equation names; the batch is the first axis of values and output."""
    folded = any(isinstance(known, BatchView) for known in operands)
    views = [known.value if isinstance(known, BatchView) else known for known in operands]
    ranks = [known.dim() if isinstance(known, Tensor) else tracer.value(known).shape for known in views]
    names, target = _letters(tracer, equation, [r if isinstance(r, int) else len(r) + (not folded) for r in ranks])
    if not folded:
        starts = [isinstance(known, Value) for known in views]  # whether the first axis is the batch
        firsts = {name[0] for name, start in zip(names, starts, strict=True) if start}
        names = [name[start:] for name, start in zip(names, starts, strict=True)]
        if firsts != {target[:1]} or any(target[0] in name for name in names):
            raise tracer.refuse(f"computes einsum {equation!r}: the batch must be the first axis of all but constants")
        target = target[1:]
    whole: list[Named] = [(known, name) for known, name in zip(views, names, strict=True)]  # type: ignore[misc]
    while len(whole) > 1:
        left, right, *rest = whole
        later = set(target).union(*(name for _, name in rest))
        whole = [_multiply(tracer, left, right, later), *rest]
    known, name = _sum(tracer, whole[0], set(target))
    made = tracer.permute(tracer.value(known), [name.index(letter) for letter in target])
    return BatchView(made, folded=True) if folded else made


def _letters(tracer: Tracer, equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of the axes of each operand and of the output, with letters for an ellipsis."""
    given, arrow, target = equation.replace(" ", "").partition("->")
    unused = "".join(letter for letter in ascii_letters if letter not in equation)
    parts = given.split(",")
    free = [rank - len(part.replace("...", "")) for part, rank in zip(parts, ranks, strict=True)]
    names = [part.replace("...", unused[max(free) - n : max(free)]) for part, n in zip(parts, free, strict=True)]
    every = "".join(names)
    if not arrow:
        once = sorted(letter for letter in set(every) if every.count(letter) == 1 and letter not in unused)
        target = "..." * ("..." in given) + "".join(once)
    target = target.replace("...", unused[: max(free)])
    if any(len(set(name)) < len(name) for name in names) or not set(target) <= set(every):
        raise tracer.refuse(f"computes einsum {equation!r}, which takes a diagonal: index it before")
    return names, target


def _sum(tracer: Tracer, named: Named, kept: set[str]) -> Named:
    """Sum over the axes that nothing names any more: a product with ones."""
    known, name = named
    gone = [axis for axis, letter in enumerate(name) if letter not in kept]
    left = "".join(letter for letter in name if letter in kept)
    if not gone:
        return named
    if isinstance(known, Tensor):
        return known.sum(gone), left
    stay = [axis for axis in range(len(name)) if axis not in gone]
    rows = tracer.reshape(tracer.permute(known, [*stay, *gone]), (_size(known, stay), _size(known, gone)))
    made = linear(tracer, rows, torch.ones(1, rows.shape[1]))
    return tracer.reshape(made, [known.shape[axis] for axis in stay]), left


def _multiply(tracer: Tracer, left: Named, right: Named, later: set[str]) -> Named:
    """Multiply two operands and sum over the axes that only they name."""
    (first, one), (second, other) = _sum(tracer, left, later | set(right[1])), _sum(tracer, right, later | set(left[1]))
    if isinstance(first, Tensor) and isinstance(second, Value):
        first, one, second, other = second, other, first, one
    sizes = dict(zip(one + other, (*first.shape, *second.shape), strict=True))
    both = [letter for letter in one if letter in other and letter in later]
    summed = [letter for letter in one if letter in other and letter not in later]
    rows, columns = ([c for c in name if c not in against] for name, against in ((one, other), (other, one)))
    axes = [[one.index(letter) for letter in (*both, *rows, *summed)]]
    axes.append([other.index(letter) for letter in (*both, *summed, *columns)])
    shape = [math.prod(sizes[letter] for letter in part) for part in (both, rows, summed, columns)]
    name = "".join((*both, *rows, *columns))
    if isinstance(first, Tensor):
        assert isinstance(second, Tensor)
        matrices = first.permute(axes[0]).reshape(*shape[:3]), second.permute(axes[1]).reshape(shape[0], *shape[2:])
        return torch.matmul(*matrices).reshape([sizes[letter] for letter in name]), name
    value = tracer.reshape(tracer.permute(first, axes[0]), shape[:3])
    if isinstance(second, Tensor):
        made = multiply_by_matrices(tracer, value, second.permute(axes[1]).reshape(shape[0], *shape[2:]))
    else:
        matrices_ = tracer.reshape(tracer.permute(second, axes[1]), (shape[0], *shape[2:]))
        made = tracer.add("matmul", value, matrices_)
    return tracer.reshape(made, [sizes[letter] for letter in name]), name


def multiply_by_matrices(tracer: Tracer, value: Value, matrices: Tensor) -> Value:
    """Multiply (group, row, feature) by a constant matrix per group: a convolution in groups of one column."""
    groups, rows, features = value.shape
    if groups == 1:
        return linear(tracer, value, matrices[0].T.contiguous())
    image = tracer.reshape(tracer.permute(value, (0, 2, 1)), (groups * features, rows, 1))
    weight = matrices.transpose(1, 2).reshape(-1, features, 1, 1).contiguous()
    made = tracer.value(convolution(tracer, image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups))
    return tracer.permute(tracer.reshape(made, (groups, matrices.shape[2], rows)), (0, 2, 1))


def _size(value: Value, axes: Sequence[int]) -> int:
    return math.prod(value.shape[axis] for axis in axes)
