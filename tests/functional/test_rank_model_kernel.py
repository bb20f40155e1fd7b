"""Ranking a whole model equals ranking each layer, interpreted and on a GPU."""

import math
import random

import pytest
import torch
from torch import Tensor

from equalbits.functional import positive_count, transport_by_sorting

KINDS = ("normal", "uniform", "tied", "equal", "heavy", "huge", "denormal", "two-humped", "zeros")


def draw(kind: str, shape: tuple[int, ...], seed: int) -> Tensor:
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return {
        "normal": noise * 0.05,
        "uniform": noise.clamp(-0.5, 0.5),
        "tied": (noise * 2).round(),
        "equal": torch.full(shape, 0.3),
        "heavy": noise**9,
        "huge": (noise * 1e38).clamp(-3e38, 3e38),
        "denormal": noise * 1e-40,
        "two-humped": noise.sign() * 5 + noise * 1e-3,
        "zeros": torch.where(noise > 0, 0.0, -0.0),
    }[kind]


def rank_together(latents: list[Tensor], shares: list[float], device: str, dtype: torch.dtype) -> None:
    from equalbits.functional.kernels.rank_model import ModelRanking, RankedLayer, can_rank

    layers, expected = [], []
    for rows, p_pos in zip(latents, shares, strict=True):
        there, scale = rows.to(device), torch.tensor(0.5 + p_pos, device=device)
        assert can_rank(there)
        connections = rows[0].numel()
        layers.append(RankedLayer(there, dtype, scale, connections - positive_count(connections, p_pos)))
        expected.append((transport_by_sorting(rows, p_pos) * scale.cpu()).to(dtype))
    ranking = ModelRanking(layers)
    for _ in range(2 if device == "cuda" else 1):  # the second run starts from the notes of the first
        buffers = ranking.allocate()
        for number, buffer in enumerate(buffers):
            ranking.launch(number, buffer.fill_(7))
        for mine, symbols in zip(ranking.symbols(buffers), expected, strict=True):
            torch.testing.assert_close(mine.cpu(), symbols, rtol=0, atol=0, equal_nan=True)


def mixed_layers(device: str) -> None:
    choose = random.Random(0)
    for trial in range(2000 if device == "cuda" else 16):
        latents = []
        for number in range(choose.randint(1, 4)):
            image = choose.random() < 0.6
            filters, channels = choose.randint(1, 4), choose.randint(1, 40)
            shape = (filters, channels, 3, 3) if image else (filters, choose.choice((1, 2, 27, 256, 1500)))
            rows = draw(choose.choice(KINDS), shape, trial * 10 + number)
            latents.append(
                rows.contiguous(memory_format=torch.channels_last) if choose.random() < 0.5 and image else rows
            )
        shares = [choose.choice((0.0, 0.1, 0.25, 0.5, 0.9, 1.0)) for _ in latents]
        rank_together(latents, shares, device, torch.float32)


def long_rows(device: str) -> None:
    filters, lengths = (2, (1152, 2000, 4608, 5000, 16384, 24_600, 32768)) if device == "cuda" else (1, (1152, 4608))
    for length in lengths:
        layers = [draw(kind, (filters, length), length) for kind in KINDS]
        rank_together(layers, [0.5] * len(KINDS), device, torch.float32)


def a_weight_far_from_the_rest(device: str) -> None:
    """An outlier misleads the first guess: all other weights may lie on one side of both probes."""
    lengths = (4608, 32767, 32768) if device == "cuda" else (4608, 32768)
    for length in lengths:
        rows = draw("normal", (2, length), length)
        rows[0, 7], rows[1, 9] = -1e4, 1e4
        few = 2 / length
        rank_together([rows, -rows.abs(), rows.abs()], [0.5, few, 1 - few], device, torch.float32)


def rows_without_ranks(device: str) -> None:
    rows = draw("normal", (5, 8, 3, 3), 0).contiguous(memory_format=torch.channels_last)
    rows[0, 3, 1, 1], rows[1, 7, 2, 2], rows[2, 0, 0, 0] = math.nan, math.inf, -math.inf
    rank_together([rows], [0.5], device, torch.float32)


def rows_on_the_move(device: str) -> None:
    """Small steps, as in training, mixed with large ones, ties, equal weights and a nonfinite one."""
    from equalbits.functional.kernels.rank_model import ModelRanking, RankedLayer

    lengths, spacing = ((100, 576, 1152, 4608, 16384), 7) if device == "cuda" else ((100, 1152, 8192), 3)
    for length in lengths:
        rows = draw("normal", (16 if device == "cuda" else 2, length), length)
        there, scale = rows.to(device), torch.ones((), device=device)
        wanted = length - positive_count(length, 0.4)
        ranking = ModelRanking([RankedLayer(there, torch.float32, scale, wanted)])
        (buffer,) = ranking.allocate()
        (symbols,) = ranking.symbols([buffer])
        for step in range(200 if device == "cuda" else 12):
            rows = rows + draw("normal", tuple(rows.shape), step) * 0.003
            now = rows.clone()
            if step % spacing == 2:
                now = (
                    rows * 3 + 1,
                    (rows * 50).round() / 50,
                    torch.where(rows.abs() < 0.03, rows * 1e-6, rows),
                    torch.where(rows == rows.amax(1, keepdim=True), math.nan, rows),
                )[step // spacing % 4]
            there.copy_(now)
            ranking.launch(0, buffer)
            torch.testing.assert_close(
                symbols.cpu(), transport_by_sorting(now, 0.4), rtol=0, atol=0, equal_nan=True, msg=f"step {step}"
            )


def notes_of_anything(device: str) -> None:
    """Arbitrary notes do not change the result, and the next notes are finite."""
    from equalbits.functional.kernels.rank_model import ModelRanking, RankedLayer

    choose, most = random.Random(0), torch.finfo(torch.float32).max
    numbers = (0.0, -0.0, 1e-45, -1e-45, 0.05, -0.05, 0.3, -5.0, 1e4, most, -most)
    for trial in range(500 if device == "cuda" else 6):
        length = choose.choice((1, 2, 33, 128, 129, 1100))
        rows = draw(choose.choice(KINDS), (4, length), trial)
        rows[0, choose.randrange(length)] = choose.choice((math.nan, math.inf, -math.inf, most, -most))
        p_pos = choose.choice((0.0, 0.3, 0.5, 1.0))
        there, scale = rows.to(device), torch.ones((), device=device)
        ranking = ModelRanking([RankedLayer(there, torch.float32, scale, length - positive_count(length, p_pos))])
        (buffer,) = ranking.allocate()
        (symbols,) = ranking.symbols([buffer])
        noted = [[choose.choice(numbers), abs(choose.choice(numbers))] for _ in rows]
        ranking.notes[0].copy_(torch.tensor(noted))
        for _ in range(2):
            ranking.launch(0, buffer)
            expected = transport_by_sorting(rows, p_pos)
            torch.testing.assert_close(symbols.cpu(), expected, rtol=0, atol=0, equal_nan=True, msg=f"{noted}")
            assert ranking.notes[0].isfinite().all() and (ranking.notes[0][:, 1] >= 0).all()


LAWS = {
    law.__name__: law
    for law in (
        mixed_layers,
        long_rows,
        a_weight_far_from_the_rest,
        rows_without_ranks,
        rows_on_the_move,
        notes_of_anything,
    )
}


@pytest.mark.parametrize("law", LAWS)
def test_the_interpreted_ranking_equals_the_cpu_to_the_bit(law: str, errors_interpreted: dict[str, str]) -> None:
    assert errors_interpreted[law] == ""


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS)
def test_the_compiled_ranking_equals_the_cpu_to_the_bit(law: str) -> None:
    LAWS[law]("cuda")


@pytest.mark.gpu
def test_scale_and_cast_round_as_torch_does() -> None:
    shapes = ((64, 3, 3, 3), (64, 64, 3, 3), (256, 16384), (10, 256), (512, 512, 3, 3))
    latents = [draw("normal", shape, 1) for shape in shapes]
    for dtype in (torch.bfloat16, torch.float16):
        rank_together(latents, [0.5, 0.3, 0.5, 0.7, 0.5], "cuda", dtype)


def test_rows_that_are_too_long_or_not_dense_are_not_supported() -> None:
    pytest.importorskip("triton")
    from equalbits.functional.kernels.rank_model import can_rank

    assert can_rank(torch.empty(2, 9)) and can_rank(torch.empty(2, 3, 2, 2).to(memory_format=torch.channels_last))
    for rows in (torch.empty(1, 40_000), torch.empty(9, 2).T, torch.empty(2, 9).half(), torch.empty(0, 4)):
        assert not can_rank(rows)


if __name__ == "__main__":  # in a new process: Triton selects its interpreter at import
    from interpreter import print_errors

    print_errors(LAWS)
