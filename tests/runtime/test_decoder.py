"""A packed causal decoder with a cache gives the logits of the whole text, however the tokens arrive."""

from dataclasses import replace

import numpy as np
import pytest

from equalbits.runtime import Decoder, Network, NetworkBuilder, PackedModel, Port, generate, native
from equalbits.runtime.engine import NativeEngine, run_numpy
from equalbits.runtime.shorten_decoder import shorten

LENGTH, WIDTH, HEADS, VOCABULARY = 40, 24, 3, 30
SETS = [] if native.BUILT is None else native.BUILT.instruction_sets()
needs_native = pytest.mark.skipif(native.BUILT is None, reason=native.REASON)


def causal(*, depth: int = 2, bits: int = 32, gain: bool = False, causal: bool = True, length: int = LENGTH) -> Network:
    """A decoder with a table of positions, multiplied in too with ``gain``, in every block."""
    random = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    build = NetworkBuilder((1, 1, length))
    x = build.add("embedding", build.add("flatten", build.image), table=floats(VOCABULARY, WIDTH))
    part = WIDTH // HEADS
    for _ in range(depth):
        x = build.add("flatten", x)
        both = floats(2, length * WIDTH) / 4
        both[0] = both[0] + 1 if gain else 1
        x = build.add("reshape", build.add("affine", x, gain_shift=both), shape=(length, WIDTH))
        normed = build.add("layer_norm", x, axis=1, scale=floats(WIDTH), bias=floats(WIDTH))
        made = build.add_binary("linear", normed, random.choice([-1, 1], (3 * WIDTH, WIDTH)), input_bits=bits)
        made = build.add("permute", build.add("reshape", made, shape=(length, 3, HEADS, part)), axes=(1, 2, 0, 3))
        heads = []
        for i in range(3):
            one = build.add("slice", made, start=(i, 0, 0, 0), stop=(i + 1, HEADS, length, part), step=(1, 1, 1, 1))
            heads.append(build.add("reshape", one, shape=(HEADS, length, part)))
        keys = build.add("permute", heads[1], axes=(0, 2, 1))
        scaled = build.add("affine", heads[0], gain_shift=np.float32([[0.1] * HEADS, [0] * HEADS]))
        shares = build.add("softmax", build.add("matmul", scaled, keys), axis=2, causal=causal)
        mixed = build.add("permute", build.add("matmul", shares, heads[2]), axes=(1, 0, 2))
        mixed = build.add("reshape", mixed, shape=(length, WIDTH))
        x = build.add(
            "add", x, build.add_binary("linear", mixed, random.choice([-1, 1], (WIDTH, WIDTH)), input_bits=bits)
        )
        x = build.add("gelu", x)
    build.add("linear", x, weight=floats(VOCABULARY, WIDTH))
    return replace(build.finish(), inputs=(Port("tokens", (length,), VOCABULARY),))


TOKENS = np.random.default_rng(1).integers(VOCABULARY, size=LENGTH)


@needs_native
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_logits_are_those_of_the_whole_text_however_tokens_arrive(name: str, gain: bool, bits: int) -> None:
    model = PackedModel(causal(bits=bits, gain=gain))
    model.native = NativeEngine(model.network, name)
    truth = model(TOKENS)
    for pieces in ([1] * LENGTH, [LENGTH], [7, 1, 1, 20, 2, 9], [33, 7]):
        decoder, read = Decoder(model, rows=8), 0
        for piece in pieces:
            logits = decoder.extend(TOKENS[read : read + piece])
            read += piece
            if bits == 8:  # sums of integers, and all else in the same order
                np.testing.assert_array_equal(logits, truth[read - 1], err_msg=f"{pieces} {read}")
            bound = 1e-5 * np.abs(truth).max()
            np.testing.assert_allclose(logits, truth[read - 1], rtol=1e-4, atol=bound, err_msg=f"{pieces} {read}")
    assert decoder.read == LENGTH


@needs_native
def test_several_threads_give_the_same_logits() -> None:
    one, three = Decoder(PackedModel(causal())), Decoder(PackedModel(causal(), threads=3))
    np.testing.assert_array_equal(three.extend(TOKENS[:30]), one.extend(TOKENS[:30]))
    np.testing.assert_array_equal(three.extend(TOKENS[30:31]), one.extend(TOKENS[30:31]))


@needs_native
def test_a_decoder_that_is_reset_has_forgotten_all() -> None:
    decoder = Decoder(PackedModel(causal()))
    first = decoder.extend(TOKENS[:9])
    decoder.extend(TOKENS[9:30])
    decoder.reset()
    np.testing.assert_array_equal(decoder.extend(TOKENS[:9]), first)


@needs_native
def test_text_generated_with_and_without_a_cache_is_the_same() -> None:
    """Beyond its length, too, where the decoder reads the last tokens alone."""
    model, slow = PackedModel(causal()), PackedModel(causal(), engine="numpy")
    prompt = TOKENS[:5].tolist()
    for options in ({}, {"temperature": 0.7, "seed": 3}):
        found = list(generate(model, prompt, LENGTH + 3, **options))
        assert found == list(generate(slow, prompt, LENGTH + 3, **options))


@pytest.mark.parametrize("rows", [1, 7, LENGTH])
def test_a_shortened_decoder_gives_the_first_logits(rows: int) -> None:
    whole = causal(gain=True)
    short = shorten(whole, rows).network
    given = TOKENS.astype(np.float32)[None, None, None]
    made = run_numpy(short, given[..., :rows])
    truth = run_numpy(whole, given)[0, :rows]
    np.testing.assert_allclose(made[0], truth, rtol=1e-4, atol=1e-5 * np.abs(truth).max())


def test_a_decoder_whose_tokens_meet_elsewhere_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"operation \d+ \(matmul, #\d+\) mixes tokens outside causal attention: no cache"
    ):
        shorten(causal(causal=False), 1)
    build = NetworkBuilder((1, 1, 8))
    x = build.add("embedding", build.add("flatten", build.image), table=np.ones((5, 4), np.float32))
    build.add("softmax", x, axis=0)
    with pytest.raises(ValueError, match=r"operation 2 \(softmax, #2\) mixes tokens: no cache is possible"):
        shorten(replace(build.finish(), inputs=(Port("tokens", (8,), 5),)), 1)
    with pytest.raises(ValueError, match="a cache needs the native engine"):
        Decoder(PackedModel(causal(), engine="numpy"))


@needs_native
def test_tokens_and_positions_are_checked() -> None:
    decoder = Decoder(PackedModel(causal()))
    with pytest.raises(ValueError, match="ids are integers from 0 to 29"):
        decoder.extend([30])
    with pytest.raises(ValueError, match="41 tokens after 0: give at least one, 40 in all"):
        decoder.extend([1] * 41)
    decoder.extend(TOKENS)
    with pytest.raises(ValueError, match="1 tokens after 40"):
        decoder.extend([1])
