"""Every Triton kernel compiles for an H200, as its launchers set it; no GPU is needed."""

import pytest
import torch

SHARED = 227 * 2**10  # bytes of shared memory that a program can have there


def ranking() -> None:
    from equalbits.functional.kernels import rank_rows
    from equalbits.functional.kernels.rank_model import ModelRanking, RankedLayer

    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        rank_rows.rank(torch.randn(2, 576).to(dtype), 288)
    for length in (576, 70_001):
        rank_rows.rank(torch.randn(2, length), torch.full((2, 1), 2), torch.rand(2, length) > 0.5)
    rank_rows.rank(torch.randn(2, 70_001), 9)
    latents = torch.randn(2, 8, 3, 3)
    for form in (torch.contiguous_format, torch.channels_last):
        rank_rows.rank_scaled(latents.contiguous(memory_format=form), 9, torch.tensor(0.3), torch.bfloat16)
    for length in (27, 576, 4608):
        layer = RankedLayer(torch.randn(2, length), torch.bfloat16, torch.tensor(0.3), length // 2)
        ranked = ModelRanking([layer])
        ranked.launch(0, *ranked.allocate())


def bits() -> None:
    from equalbits.functional.kernels import pack_bits

    packed = pack_bits.pack(torch.rand(3, 20) > 0.5)
    pack_bits.unpack(packed, 20, torch.bool)
    for dtype in (torch.bfloat16, torch.float32):
        pack_bits.unpack(packed, 20, dtype)
        pack_bits.sign(torch.randn(3, 20, dtype=dtype), 20, dtype)
        pack_bits.mask(torch.randn(3, 20, dtype=dtype), packed, 20, dtype)


def products() -> None:
    from equalbits.functional.kernels.int8_convolution import DTYPES, convolve

    for dtype in DTYPES:
        signs, symbols = torch.ones(2, 32, 4, 4).to(dtype), torch.ones(16, 32, 3, 3).to(dtype)
        convolve(signs, symbols, torch.tensor(0.1), ((1, 1), (1, 1)), torch.bfloat16)


def steps() -> None:
    from equalbits.functional.kernels.sgd_step import sgd_step_
    from equalbits.functional.sgd_step import SGDSettings

    latents, scale = torch.randn(9), torch.tensor(0.3)
    for dtype in (torch.bfloat16, torch.float32):
        sgd_step_(latents, None, latents.to(dtype), scale, SGDSettings(scale))
        sgd_step_(latents, latents.clone(), latents.to(dtype), scale, SGDSettings(scale, 0.9, 1e-4, True))


def norms() -> None:
    from equalbits.functional.kernels import norm_add_rprelu_sign, prelu_norm_add_sign

    for dtype in (torch.bfloat16, torch.float32):
        c = torch.randn(2, 64, 4, 4).to(dtype).contiguous(memory_format=torch.channels_last)
        vectors, near = [torch.ones(64) for _ in range(6)], torch.zeros(32, 8, dtype=torch.uint8)
        for slope in (None, vectors[0]):
            prelu_norm_add_sign.forward(c, slope, *vectors[1:3], c.clone(), 1e-5, True, slope is not None)
            for gradients in ((c, c.clone()), (c, None)):
                prelu_norm_add_sign.backward(*gradients, c.clone(), slope, vectors[1], near, torch.ones(5, 64))
        for shift in (None, vectors[5]):
            norm_add_rprelu_sign.forward(c, c.clone(), *vectors[:5], shift, 1e-5)
            of_signs = None if shift is None else c.clone()
            norm_add_rprelu_sign.backward(c.clone(), of_signs, c, c.clone(), *vectors[:5], shift, torch.ones(3, 64))


@pytest.mark.parametrize("law", [ranking, bits, products, steps, norms])
def test_kernels_compile_without_warnings(law, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class NoDriver:
        get_current_device = lambda self: "none"  # noqa: E731 (its own key in the cache of kernels)
        get_current_stream = lambda self, device: 0  # noqa: E731
        get_current_target = lambda self: GPUTarget("cuda", 90, 32)  # noqa: E731

    def compile_only(self: JITFunction, *arguments: object, warmup: bool, **options: object) -> None:
        kernels.append(run(self, *arguments, warmup=True, **options))

    kernels, run, before = [], JITFunction.run, dict(vars(driver))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    driver.set_active(NoDriver())
    try:
        law()
    finally:
        vars(driver).update(before)
    assert kernels and all(kernel.metadata.shared <= SHARED for kernel in kernels)
