"""On a GPU: nets captured in one stack train as each does alone."""

import dataclasses
import signal

import pytest
import torch
from gpu_case import Witness, assert_close, assert_same_images, make_loader, make_net, seeded
from torch import nn

from equalbits.nn import BiHalf, IRNet
from equalbits.training import DistillConfig, InterruptedTraining, StackError, train, train_stack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_a_net_in_evaluation_mode_is_captured_in_training_mode(make_config) -> None:
    for way in ("alone", "stack"):
        model = make_net().eval()
        if way == "alone":
            train(model, make_loader(), make_config(speed="captured"))
        else:
            train_stack([model], [make_loader()], seeded(make_config(speed="captured"), [0]))
        assert int(model[1].num_batches_tracked) == 18


def test_a_captured_stack_trains_what_each_net_trains_alone(make_config) -> None:
    seeds = [0, 1, 2]
    config = make_config(speed="captured", precision="fp32", lr=0.01)
    alone, stacked = [make_net(seed) for seed in seeds], [make_net(seed) for seed in seeds]
    for model, seed in zip(alone, seeds, strict=True):
        train(model, make_loader(seed=seed), make_config(speed="captured", precision="fp32", lr=0.01, seed=seed))
    histories = train_stack(stacked, [make_loader().with_seed(seed) for seed in seeds], seeded(config, seeds))
    for mine, theirs in zip(stacked, alone, strict=True):
        assert_close(mine, theirs)
    assert [record.train.total for history in histories for record in history.epochs] == [84] * 9


def test_a_captured_stack_with_a_teacher_and_averaged_weights_trains_what_each_net_trains_alone(make_config) -> None:
    teacher = make_net(seed=7)
    settings = {"lr": 0.01, "weight_average": 0.9, "distill": DistillConfig(weight=0.7, temperature=2.0)}
    config = make_config(speed="captured", precision="fp32", **settings)
    alone, stacked = ([make_net(seed) for seed in range(2)] for _ in range(2))
    for seed, model in enumerate(alone):
        train(model, make_loader(seed=seed), dataclasses.replace(config, seed=seed), teacher=teacher)
    train_stack(stacked, [make_loader(seed=seed) for seed in range(2)], seeded(config, range(2)), teacher=teacher)
    for mine, theirs in zip(stacked, alone, strict=True):
        assert_close(mine, theirs)


def test_a_captured_stack_may_have_different_batch_sizes(make_config) -> None:
    counts, nets = (84, 90), [Witness().cuda() for _ in range(2)]
    config = make_config(speed="captured", precision="fp32")
    train_stack(nets, [make_loader(count) for count in counts], seeded(config, [0, 0]))
    for count, net in zip(counts, nets, strict=True):
        alone = Witness().cuda()
        train(alone, make_loader(count), make_config(speed="plain", precision="fp32"))
        assert_same_images(net, alone)


def test_a_last_batch_of_one_image_raises_a_clear_error(make_config) -> None:
    net = make_net().append(nn.BatchNorm1d(4).cuda())  # over pixels it has enough of one image, over logits not
    with pytest.raises(ValueError, match="batch norm cannot train on one image"):
        train(net, make_loader(81), make_config(speed="captured"))
    with pytest.raises(ValueError, match="batch norm cannot train on one image"):
        train_stack([net], [make_loader(81)], seeded(make_config(speed="captured"), [0]))


def test_a_captured_stack_of_several_settings_continues_without_diverged_nets(make_config) -> None:
    settings = [{"lr": 0.01}, {"lr": 1e30}, {"lr": 0.003, "label_smoothing": 0.1}]
    configs = [make_config(speed="captured", precision="fp32", **some) for some in settings]
    kinds = [BiHalf, BiHalf, lambda: IRNet("fixed")]
    alone, stacked = ([make_net(seed, quantizer=kind) for seed, kind in enumerate(kinds)] for _ in range(2))
    for seed in (0, 2):
        train(alone[seed], make_loader(seed=seed), dataclasses.replace(configs[seed], seed=seed))
    with pytest.raises(StackError) as caught:
        train_stack(stacked, [make_loader(seed=seed) for seed in range(3)], seeded(configs, range(3)))
    assert list(caught.value.errors) == [1]
    for seed in (0, 2):
        assert_close(stacked[seed], alone[seed])


def test_an_interrupted_captured_stack_resumes_to_the_same_result(tmp_path, make_config) -> None:
    config = make_config(speed="captured", precision="fp32", lr=0.01, checkpoint_seconds=0)

    def run(checkpoint, **options) -> list[nn.Module]:
        nets = [make_net(seed) for seed in range(2)]
        loaders = [make_loader(seed=seed) for seed in range(2)]
        train_stack(nets, loaders, seeded(config, range(2)), checkpoint=checkpoint, **options)
        return nets

    whole = run(None)
    with pytest.raises(InterruptedTraining):
        run(tmp_path / "stack", reporters=[[lambda record: signal.raise_signal(signal.SIGTERM)], []])
    for mine, theirs in zip(run(tmp_path / "stack"), whole, strict=True):
        assert_close(mine, theirs)
