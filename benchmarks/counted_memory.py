"""Count the memory of training a binary ResNet-18 beside the real one, on any machine: nothing is computed.

    python benchmarks/counted_memory.py [--batch 128] [--net resnet18] [--ways "real|1w1a|1w1a small"] [--live 20]

Compiles a step as on a GPU, runs the compiled code on tensors without data, and follows what is live: parameters,
momentum, gradients, activations and temporaries, inside our operators too. It does not know workspaces of cuDNN and
cuBLAS, the copy of the batch, and what a GPU compiles otherwise than a CPU; ``training_cost.py`` measures all of it.
``counted_eager_memory.py`` counts eager steps. ``--live`` lists the largest tensors at the peaks of
forward and backward, by the lines of our operators that made them; a line of "compiled code" has no further meaning.
"""

import argparse
import inspect
import re
import traceback
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import training_ways
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import async_compile, compile_fx, graph
from torch._inductor import config as inductor
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equalbits import functional as F
from equalbits.functional import conv_as_matmul, products_of_signs
from equalbits.functional.fused_prelu import PRELU
from equalbits.functional.fused_rprelu import RPRELU
from equalbits.functional.packed_bits import BitLayout
from equalbits.models import pooling
from equalbits.nn import BackwardUpdates, BinaryLayer, fused_norm
from equalbits.training import optimizer

WAYS = "real|1w1a|1w1a early|1w1a 8bits|1w1a 8bits early|1w1a again20 early|1w1a again20 8bits early|1w1a small"
WAYS += "|1w1a small 8bits|best|best small|best unfused"
MIB = 2**20


class Stop(Exception):  # noqa: N818 (it is no error)
    """Ends a compilation as soon as its code is known."""


class Live(TorchDispatchMode):
    """Follow the bytes of all storages that exist, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.largest: list[tuple[int, str]] = []  # at the peak
        self.now = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note the storages of its results."""
        results = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self.sizes:
                self._note(tensor.untyped_storage(), f"{str(tensor.dtype)[6:]} {tuple(tensor.shape)}")
        return results

    def _note(self, storage: Any, form: str) -> None:
        place, size = storage._cdata, storage.nbytes()
        self.sizes[place] = size
        self.now += size
        lines = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_stack() if "equalbits" in f.filename]
        self.names[place] = " ".join((form, *lines[-1:]))
        if self.now > self.peak:
            self.peak = self.now
            self.largest = sorted(((size, self.names[each]) for each, size in self.sizes.items()), reverse=True)

        def free() -> None:
            self.now -= self.sizes.pop(place, 0)

        weakref.finalize(storage, free)


def act_as_on_a_gpu() -> None:
    """Make compiled code on a CPU take the paths of a GPU, and operators allocate what they allocate there."""
    training_ways.CAN_FUSE = lambda inputs, *norms: (
        torch.is_grad_enabled() and all(fused_norm._is_default(each) for each in norms)
    )
    pooling.can_fuse = training_ways.CAN_FUSE
    use_products_of_a_gpu()


def use_products_of_a_gpu() -> None:
    """Make convolutions that are matrix products on a GPU products on a CPU, too."""
    source = inspect.getsource(conv_as_matmul.convolve).replace('inputs.device.type == "cuda"', "True")
    exec(compile(source, conv_as_matmul.__file__, "exec"), vars(conv_as_matmul))
    F.convolve = conv_as_matmul.convolve


def unpack(layout: BitLayout, packed: Tensor, dtype: torch.dtype) -> Tensor:
    form = torch.channels_last if layout.channels_last else torch.contiguous_format
    return torch.empty(layout.shape, dtype=dtype, memory_format=form)


def over_input(g_y: Tensor | None, g_s: Tensor | None, c: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """Allocate as the gradients of the norm with PReLU, written over its input."""
    stats = others[-1]
    total = c.new_empty(0) if g_s is None else torch.empty_like(g_s)
    return total, c, stats.new_empty(2, c.shape[1]), stats.new_empty(c.shape[1])


def over_input_of_rprelu(g_y: Tensor | None, g_s: Tensor | None, c: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """Allocate as the gradients of the norm with RPReLU, written over its input."""
    return torch.empty_like(c), c, others[-1].new_empty(5 if g_s is None else 6, c.shape[1])


def compiled_code(way: str, case: training_ways.Case) -> list[str]:
    """Return the Python code of a compiled step: forward and backward."""
    training_ways.act_as(way)
    torch._dynamo.reset()
    with torch.device("meta"):
        model = training_ways.make_model(way, case)
    model.to_empty(device="cpu").to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
    for number, layer in enumerate(layers):
        layer.ranked_ahead = number, torch.bfloat16  # as in a captured step
    memory = "small" if "small" in way else "normal"
    early = memory in optimizer.UPDATES_IN_BACKWARD and bool(layers)
    updates = early and BackwardUpdates(layers, lambda *_: None)
    codes: list[str] = []

    def save(code: str) -> None:
        codes.append(code)
        raise Stop

    graph.GraphLowering.save_output_code = staticmethod(save)

    def compiler(is_backward: bool) -> Callable[..., Any]:
        def compile_only(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            try:
                compile_fx.compile_fx_inner(module, inputs, is_backward=is_backward, cudagraphs=False)
            except Exception as error:
                if "Stop" not in repr(error):
                    raise
            outputs = next(node for node in module.graph.nodes if node.op == "output").args[0]
            empty = [_empty_like(None if node is None else node.meta["val"]) for node in outputs]
            return make_boxed_func(lambda *_: empty)

        return compile_only

    backend = aot_autograd(
        fw_compiler=compiler(False),
        bw_compiler=compiler(True),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
        decompositions=select_decomp_table,
    )

    def step(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(images)
        return nn.functional.cross_entropy(outputs, labels)

    images = torch.empty(case.batch, 3, case.side, case.side).contiguous(memory_format=torch.channels_last)
    with updates or nullcontext():
        loss = torch.compile(step, backend=backend, dynamic=False)(images, torch.zeros(case.batch, dtype=torch.int64))
    loss.backward()
    return codes


def _empty_like(value: Any) -> Any:
    return torch.empty_like(value, device="cpu") if isinstance(value, Tensor) else value


#: Operators that allocate more than their outputs.
BODIES = {
    "recomputed_prelu_norm_add_sign_backward": PRELU.recomputed_gradients,
    "recomputed_norm_add_rprelu_sign_backward": RPRELU.recomputed_gradients,
    "convolution_of_bits_backward": products_of_signs._convolution,
    "linear_of_bits_backward": products_of_signs._weight_of_linear,
}


def peak_of(code: str, *, keep_inputs: bool, live_tensors: int = 0) -> tuple[int, int]:
    """Return bytes live before and at the peak of running compiled code on tensors without data."""
    for name in BODIES:
        code = code.replace(f"torch.ops.equalbits.{name}.default(", f"{name}(")
    given: dict[str, Any] = {"__name__": "code"}
    nothing: Any = lambda *_, **__: None  # noqa: E731
    async_compile.AsyncCompile.cpp_pybinding = lambda *_, **__: nothing  # type: ignore[method-assign]
    async_compile.AsyncCompile.wait = nothing  # type: ignore[method-assign]
    exec(compile(code, "compiled code", "exec"), given)
    given |= {"assert_size_stride": nothing, "assert_alignment": nothing, "extern_kernels": Kernels()}
    given["empty_strided_cpu"] = lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype)
    given["reinterpret_tensor"] = lambda tensor, *form: torch.as_strided(tensor, *form)
    given |= BODIES
    made = code[code.rindex("def get_args") if "def get_args" in code else code.rindex("def benchmark_compiled") :]
    form = r"\w+ = rand_strided\((\([^)]*\)), (\([^)]*\)), device='cpu', dtype=(torch\.\w+)\)"
    inputs = [[eval(part) for part in found] for found in re.findall(form, made)]
    with FakeTensorMode(allow_non_fake_inputs=True), Live() as live:
        args = [torch.empty_strided(sizes, strides, dtype=dtype) for sizes, strides, dtype in inputs]
        before = live.peak = live.now
        owned_by_the_model = list(args) if keep_inputs else []
        given["call"](args)
        del owned_by_the_model
    for size, name in live.largest[:live_tensors]:
        print(f"  {size / MIB:8.2f}  {name}")
    return before, live.peak


class Kernels:
    """Torch's own operations, called by compiled code: a convolution allocates its output, the rest write to theirs."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return torch.ops.aten.convolution if name == "convolution" else lambda *_, **__: None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", default="resnet18", choices=("resnet18", "imagenet_resnet18"))
    parser.add_argument("--batch", type=int, default=0, help="128, or 256 for images of 224×224")
    parser.add_argument("--ways", default=WAYS, help="separated by |")
    parser.add_argument("--live", type=int, default=0, help="number of tensors to list at each peak")
    options = parser.parse_args()
    case = training_ways.CIFAR if options.net == "resnet18" else training_ways.LARGE
    case = case._replace(batch=options.batch or case.batch)
    inductor.force_disable_caches, inductor.compile_threads = True, 1
    act_as_on_a_gpu()
    really = BitLayout.unpack, PRELU.reference_backward, RPRELU.reference_backward
    print(f"{'captured, MiB':<28}{'kept':>8}{'forward':>9}{'backward':>9}{'peak':>8}{'x real':>8}")
    real = 0.0
    for way in options.ways.split("|"):
        forward, backward = compiled_code(way, case)
        BitLayout.unpack, PRELU.reference_backward = unpack, over_input  # type: ignore[method-assign]
        RPRELU.reference_backward = over_input_of_rprelu
        parameters, forward_peak = peak_of(forward, keep_inputs=True, live_tensors=options.live)
        kept, backward_peak = peak_of(backward, keep_inputs=False, live_tensors=options.live)
        BitLayout.unpack, PRELU.reference_backward, RPRELU.reference_backward = really  # type: ignore[method-assign]
        images = case.batch * 3 * case.side**2 * 4
        lasting = 2 * parameters - images  # and the momentum
        peak = lasting + max(forward_peak - parameters, backward_peak)
        real = real or peak
        sizes = (f"{size / MIB:9.1f}" for size in (kept, forward_peak - parameters, backward_peak, peak))
        print(f"{way:<28}{''.join(sizes)}{peak / real:8.3f}", flush=True)


if __name__ == "__main__":
    main()
