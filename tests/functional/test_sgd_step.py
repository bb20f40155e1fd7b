"""A step of SGD on latents equals torch's, on a CPU, interpreted and on a GPU."""

import itertools

import pytest
import torch
from torch import Tensor

from equalbits.functional.sgd_step import SGDSettings, reference_step_, sgd_step_

FORMS = [(0.0, 0.0, False), (0.0, 1e-2, False), (0.9, 0.0, False), (0.9, 5e-4, False), (0.8, 1e-4, True)]


def gradients(shape: tuple[int, ...], dtype: torch.dtype, device: str, steps: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(steps)]
    return [each.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else each for each in drawn]


def start(shape: tuple[int, ...], device: str) -> Tensor:
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    return latents.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else latents


def trained(step, form: tuple[float, float, bool], given: list[Tensor], device: str) -> tuple[Tensor, Tensor | None]:
    momentum, weight_decay, nesterov = form
    latents, scale = start(given[0].shape, device), torch.tensor(0.3, device=device)
    velocity = torch.zeros_like(latents) if momentum else None
    settings = SGDSettings(torch.tensor(0.1, device=device), momentum, weight_decay, nesterov)
    for gradient in given:
        step(latents, velocity, gradient, scale, settings)
    return latents, velocity


def trained_by_torch(form: tuple[float, float, bool], given: list[Tensor], device: str) -> tuple[Tensor, Tensor | None]:
    momentum, weight_decay, nesterov = form
    latents = torch.nn.Parameter(start(given[0].shape, device))
    fused = True if device == "cuda" else None
    optimizer = torch.optim.SGD(
        [latents], lr=torch.tensor(0.1, device=device), momentum=momentum, weight_decay=weight_decay,
        nesterov=nesterov, fused=fused,
    )  # fmt: skip
    for gradient in given:
        latents.grad = gradient.float() * torch.tensor(0.3, device=device)
        optimizer.step()
    return latents.detach(), optimizer.state[latents].get("momentum_buffer")


def kernel_equals_reference(device: str) -> None:
    from equalbits.functional.kernels.sgd_step import sgd_step_ as kernel

    shapes = [(3, 5), (4, 6, 3, 3), (2, 1100)]
    for form, shape, dtype in itertools.product(FORMS, shapes, (torch.float32, torch.bfloat16)):
        given = gradients(shape, dtype, device)
        found, expected = trained(kernel, form, given, device), trained(reference_step_, form, given, device)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


LAWS = {"the kernel equals the reference": kernel_equals_reference}


@pytest.mark.parametrize("law", LAWS)
def test_on_the_interpreter(law: str, errors_interpreted: dict[str, str]) -> None:
    assert not errors_interpreted[law], errors_interpreted[law]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_a_step_equals_that_of_torch_within_rounding(form: tuple[float, float, bool], dtype: torch.dtype) -> None:
    given = gradients((4, 6, 3, 3), dtype, "cpu")
    torch.testing.assert_close(trained(sgd_step_, form, given, "cpu"), trained_by_torch(form, given, "cpu"))


def test_a_gradient_of_other_strides_is_rearranged() -> None:
    given = gradients((4, 6, 3, 3), torch.float32, "cpu")
    others = [gradient.contiguous() for gradient in given]
    assert others[0].stride() != given[0].stride()
    torch.testing.assert_close(trained(sgd_step_, FORMS[3], others, "cpu"), trained(sgd_step_, FORMS[3], given, "cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_a_step_on_a_gpu_equals_that_of_torch_within_rounding(form: tuple[float, float, bool]) -> None:
    given = gradients((256, 128, 3, 3), torch.bfloat16, "cuda", steps=8)
    found, expected = trained(sgd_step_, form, given, "cuda"), trained_by_torch(form, given, "cuda")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=3e-6)  # eight steps, rounded in another order


if __name__ == "__main__":
    from interpreter import print_errors
    from triton.runtime.interpreter import InterpreterBuilder

    # As the reference, which rounds the product: Triton 3.9 computes a product and a sum with one rounding, as GPUs do.
    InterpreterBuilder.create_fma = lambda self, x, y, z: self.create_fadd(self.create_fmul(x, y), z)
    print_errors(LAWS)
