"""The Triton ranking equals the CPU to the bit, interpreted and on a GPU."""

import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import equalbits
from equalbits.functional import positive_count, scaled_transport_symbols, transport_by_sorting, transport_symbols

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def draw_rows(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    noise = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(math.prod(shape)))
    return {
        "normal": noise * 0.05,
        "tied": (noise * 2).round(),
        "zeros": torch.where(noise > 0, 0.0, -0.0).double(),
        "denormal": noise * torch.finfo(dtype).tiny / 8,
    }[kind].to(dtype)


def draw_mask(shape: tuple[int, int]) -> Tensor:
    """Draw a mask that keeps no entry of the first row and all of the last."""
    draw = torch.Generator().manual_seed(shape[1])
    return torch.rand(shape, generator=draw) < torch.linspace(0, 1, shape[0])[:, None]


def same(rows: Tensor, negatives: Tensor | int, mask: Tensor | None, device: str) -> None:
    from equalbits.functional.kernels.rank_rows import rank
    from equalbits.functional.ranking import rank_by_sorting

    expected = rank_by_sorting(rows, negatives, mask)
    there = [x.to(device) if isinstance(x, Tensor) else x for x in (rows, negatives, mask)]
    answer = rank(*there)
    assert answer.dtype == rows.dtype and answer.is_contiguous()
    torch.testing.assert_close(answer.cpu(), expected, rtol=0, atol=0, equal_nan=True, msg=f"{rows.shape} {negatives}")


def rows_in_registers(device: str) -> None:
    for dtype in DTYPES:
        kinds = ("normal", "tied", "zeros", "denormal") if device == "cuda" or dtype == torch.float32 else ("tied",)
        for shape in ((300, 1), (300, 9), (300, 27), (40, 96)):
            for kind in kinds:
                same(draw_rows(kind, shape, dtype), shape[1] // 2, None, device)
        for shape in ((2, 576), (1, 4608), (1, 16384)):
            same(draw_rows("normal", shape, dtype), shape[1] // 2, None, device)
            same(draw_rows("tied", shape, dtype), shape[1] // 3, None, device)
    for negatives in (0, 1, 8, 9):
        same(draw_rows("tied", (300, 9), torch.float32), negatives, None, device)


def rows_too_long_for_registers(device: str) -> None:
    same(draw_rows("normal", (2, 40_000), torch.float32), 20_000, None, device)
    same(draw_rows("tied", (1, 70_001), torch.bfloat16), 30_000, None, device)
    same(draw_rows("denormal", (1, 70_001), torch.float16), 30_000, None, device)
    same(draw_rows("zeros", (1, 20_000), torch.float64), 10_001, None, device)  # all entries tie
    same(draw_rows("normal", (1, 20_000), torch.float64), 19_000, None, device)
    same(draw_rows("tied", (1, 300_000), torch.float32), 200_000, None, device)
    same(draw_rows("normal", (1, 140_000), torch.float32).abs(), 126_000, None, device)  # as a layer is pruned
    for negatives in (0, 1, 32_768, 32_769):
        same(draw_rows("tied", (3, 32_769), torch.float32), negatives, None, device)
    mask = draw_mask((4, 40_000))
    for rows in (draw_rows("tied", mask.shape, torch.float32), draw_rows("normal", mask.shape, torch.float32)):
        for part in (0, 1 / 3, 1):
            same(rows, (mask.sum(dim=1, keepdim=True) * part).long(), mask, device)


def rows_by_digits_at_random(device: str) -> None:
    """Rows of any length through the kernel for long rows, with any block size in the interpreter."""
    from equalbits.functional.kernels import rank_long_rows, rank_rows

    registers, block = rank_rows._REGISTERS, rank_long_rows._BLOCK
    rank_rows._REGISTERS = 0
    try:
        _by_digits_at_random(device)
    finally:
        rank_rows._REGISTERS, rank_long_rows._BLOCK = registers, block


def _by_digits_at_random(device: str) -> None:
    from equalbits.functional.kernels import rank_long_rows

    draw, choose = torch.Generator().manual_seed(0), random.Random(0)
    for _ in range(40 if device == "cuda" else 20):
        if device == "cpu":
            rank_long_rows._BLOCK = choose.choice((16, 64, 256))
        block, dtype = rank_long_rows._BLOCK, choose.choice(DTYPES)
        shape = (choose.randint(1, 4), choose.choice((1, block - 1, block, block + 1, choose.randint(1, 5 * block))))
        if choose.random() < 0.3:  # arbitrary bits, including NaN and infinity
            integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[torch.finfo(dtype).bits // 8]
            ends = torch.iinfo(integer)
            rows = torch.randint(ends.min, ends.max, shape, generator=draw, dtype=integer).view(dtype)
            rows = rows.nan_to_num(0, 0, 0) if choose.random() < 0.7 else rows
        else:
            rows = draw_rows(choose.choice(("normal", "tied", "zeros", "denormal")), shape, dtype)
        mask = torch.rand(shape, generator=draw) < choose.random()
        kept = mask.sum(dim=1, keepdim=True)
        same(rows, choose.choice((0, 1, shape[1] - 1, shape[1], shape[1] // 3)), None, device)
        same(rows, (kept * choose.choice((0, 0.3, 1))).long(), mask, device)


def masked_rows(device: str) -> None:
    for dtype in DTYPES:
        for kind, shape in (("normal", (100, 9)), ("tied", (100, 27)), ("zeros", (20, 200))):
            mask = draw_mask(shape)
            kept = mask.sum(dim=1, keepdim=True)
            same(draw_rows(kind, shape, dtype), kept // 2, mask, device)
    for negatives in (kept * 0, kept):
        same(draw_rows("tied", shape, torch.float32), negatives, mask, device)


def scaled_latents(device: str) -> None:
    from equalbits.functional.kernels import rank_rows as gpu

    noise, scale = torch.Generator().manual_seed(3), torch.tensor(0.3)
    for shape, dtype in (((5, 7), torch.float32), ((3, 6, 3, 3), torch.float16), ((4, 20, 5, 2), torch.float64)):
        for form in (torch.contiguous_format, torch.channels_last)[: len(shape) // 2]:
            latents = torch.randn(shape, generator=noise).mul(2).round().to(dtype)  # many ties
            latents[1, 1] = math.inf
            expected = (transport_by_sorting(latents, 0.3) * scale.to(dtype)).float().nan_to_num(9)
            given = latents.to(device, memory_format=form)
            negatives = latents[0].numel() - positive_count(latents[0].numel(), 0.3)
            answer = gpu.rank_scaled(given, negatives, scale.to(device, dtype), torch.float32)
            assert answer.stride() == given.stride()
            assert torch.equal(answer.cpu().nan_to_num(9), expected), (shape, form)
    vector = torch.randn(9, generator=noise)  # one filter
    found = scaled_transport_symbols(vector.to(device), 0.3, scale.to(device), torch.float32)
    assert torch.equal(found.cpu(), transport_by_sorting(vector, 0.3) * scale)
    assert gpu.rank_scaled(torch.ones(2, 40000, device=device), 2, scale.to(device), torch.float32) is None
    assert gpu.rank_scaled(torch.ones(3, 2, device=device).t(), 1, scale.to(device), torch.float32) is None


def rows_without_ranks(device: str) -> None:
    for dtype in DTYPES:
        rows = draw_rows("normal", (6, 27), dtype)
        rows[0, 3], rows[1, 26], rows[2, 0], rows[3, 5] = math.nan, math.inf, -math.inf, -math.nan
        same(rows, 13, None, device)
        same(rows, torch.full((6, 1), 1), draw_mask((6, 27)) | (torch.arange(27) < 2), device)
    for nonfinite in (math.nan, -math.nan, math.inf, -math.inf):
        rows = draw_rows("normal", (3, 33_000), torch.float32)
        rows[1, 32_999] = nonfinite
        same(rows, 9, None, device)
        same(rows, torch.full((3, 1), 7), rows > 0, device)  # also where it is masked
    same(torch.empty(0, 5), 2, None, device)


LAWS = {
    law.__name__: law
    for law in (
        rows_in_registers,
        rows_too_long_for_registers,
        rows_by_digits_at_random,
        masked_rows,
        scaled_latents,
        rows_without_ranks,
    )
}


@pytest.mark.parametrize("law", LAWS)
def test_the_interpreted_kernel_equals_the_cpu_to_the_bit(law: str, errors_interpreted: dict[str, str]) -> None:
    assert errors_interpreted[law] == ""


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
def test_the_compiled_kernel_equals_the_cpu_to_the_bit(law: str) -> None:
    LAWS[law]("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_layer_on_the_gpu_gets_the_symbols_of_the_cpu(dtype: torch.dtype) -> None:
    for shape in (
        (64, 3, 3, 3),
        (64, 64, 3, 3),
        (256, 16384),
        (256, 256),
        (10, 256),
        (512, 512, 3, 3),
        (1024, 1, 3, 3),
    ):
        latents = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(0.05).to(dtype)
        for p_pos in (0.5, 0.3):
            expected = transport_by_sorting(latents, p_pos)
            assert torch.equal(transport_symbols(latents.cuda(), p_pos).cpu(), expected)
            strided = latents.cuda().transpose(0, 1).contiguous().transpose(0, 1)
            assert torch.equal(transport_symbols(strided, p_pos).cpu(), expected)
            mask = latents.abs() > 0.02
            expected = transport_by_sorting(latents, p_pos, mask=mask)
            assert torch.equal(transport_symbols(latents.cuda(), p_pos, mask=mask.cuda()).cpu(), expected)


@pytest.mark.gpu
def test_a_replayed_graph_ranks_the_current_latents() -> None:
    latents = torch.randn(64, 576, device="cuda")
    transport_symbols(latents)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        symbols = transport_symbols(latents)
    latents.copy_(torch.randn(64, 576))
    graph.replay()
    assert torch.equal(symbols.cpu(), transport_by_sorting(latents.cpu()))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_vmap_and_compile_on_the_gpu_agree_with_the_cpu() -> None:
    nets = torch.randn(4, 8, 27)
    expected = torch.stack([transport_by_sorting(net) for net in nets])
    assert torch.equal(torch.vmap(transport_symbols)(nets.cuda()).cpu(), expected)
    compiled = torch.compile(lambda w: transport_symbols(w) * 0.5, fullgraph=True)
    assert torch.equal(compiled(nets[0].cuda()).cpu(), expected[0] * 0.5)


def test_without_triton_a_gpu_sorts() -> None:
    program = """
import sys, torch, equalbits.functional
from types import SimpleNamespace
from equalbits.functional import ranking
assert "triton" not in sys.modules
sys.modules["triton"] = None
assert ranking._gpu_for(SimpleNamespace(device=torch.device("cuda"))) is None
"""
    settings = os.environ | {"PYTHONPATH": str(Path(equalbits.__file__).parent.parent)}
    run = subprocess.run([sys.executable, "-c", program], env=settings, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


if __name__ == "__main__":  # in a new process: Triton selects its interpreter at import
    from equalbits.functional.kernels import rank_long_rows, rank_rows

    rank_rows._ENTRIES = 8192  # more rows per program: the interpreter's cost is per program
    rank_long_rows._BLOCK = 16384
    from interpreter import print_errors

    print_errors(LAWS)
