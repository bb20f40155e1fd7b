"""Compare a packed 12-layer, 768-wide decoder with llama.cpp, ONNX Runtime int8 and torch: tokens per second.

    pip install llama-cpp-python gguf diskcache
    python benchmarks/decoder.py --make DIR                  # packs, exports and quantizes; takes minutes
    python benchmarks/decoder.py --models DIR result.json [--rounds 7] [--threads 1]

All engines have the shape of GPT-2 small with ``--vocabulary`` tokens, random weights, and a cache of keys and values.
Decoding reads tokens one by one from an empty cache, prefill reads many at once; both end with logits. The engines
alternate within each round. With one thread CPU time counts, with more the time on the clock.
"""

import argparse
import ctypes
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import equalbits as eb
from equalbits.runtime import Decoder, load_packed

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from char_gpt import CharGPT

WIDTH, DEPTH, HEADS, LENGTH = 768, 12, 12, 512
GGUF_TYPES = ("TQ1_0", "TQ2_0", "Q4_0")
#: A log callback of llama.cpp that drops its lines.
QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
#: Resets an engine's cache, then reads tokens in pieces of a size.
Engine = Callable[[list[int], int], None]


class CachedGPT(nn.Module):
    """The decoder of ``examples/char_gpt.py`` with the keys and values of earlier tokens as input and output."""

    def __init__(self, model: CharGPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the last token, and ``past`` (layer, key or value, head, token, channel) extended."""
        model, count, kept = self.model, tokens.shape[0], []
        places = past.shape[3] + torch.arange(count)
        mask = torch.arange(past.shape[3] + count)[None] <= places[:, None]
        x = model.tokens(tokens) + model.positions(places)
        for block, earlier in zip(model.blocks, past, strict=True):
            heads = block.qkv(block.norm1(x)).view(count, 3, HEADS, -1).permute(1, 2, 0, 3)
            both = torch.cat((earlier, heads[1:]), 2)
            kept.append(both)
            mixed = nnf.scaled_dot_product_attention(heads[0][None], both[:1], both[1:], attn_mask=mask)[0]
            x = x + block.project(mixed.transpose(0, 1).reshape(count, WIDTH))
            x = x + block.down(nnf.gelu(block.up(block.norm2(x))))
        return model.head(model.norm(x[-1:])), torch.stack(kept)


def empty_past() -> Tensor:
    return torch.zeros(DEPTH, 2, HEADS, 0, WIDTH // HEADS)


def build_model(vocabulary: int) -> CharGPT:
    torch.manual_seed(0)
    return CharGPT(vocabulary, LENGTH, WIDTH, DEPTH, HEADS).eval()


def make(folder: Path, vocabulary: int) -> None:
    """Write the files of all engines."""
    folder.mkdir(parents=True, exist_ok=True)
    make_gguf(folder, vocabulary)
    make_onnx(folder, vocabulary)
    model = build_model(vocabulary)
    eb.binarize_(model.blocks, eb.BiHalf(), where=eb.all_layers)
    for inputs in ("float32", "int8"):
        packed = eb.pack(model, torch.randint(vocabulary, (1, LENGTH)), linear_inputs=inputs)
        packed.save(folder / f"{inputs}.ebits")


def make_onnx(folder: Path, vocabulary: int) -> None:
    """Export the decoder with its cache, and quantize it dynamically to int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    past = torch.zeros(DEPTH, 2, HEADS, 3, WIDTH // HEADS)
    torch.onnx.export(
        CachedGPT(build_model(vocabulary)),
        (torch.tensor([1, 2]), past),
        folder / "float.onnx",
        input_names=["tokens", "past"],
        output_names=["logits", "extended"],
        dynamic_axes={"tokens": {0: "count"}, "past": {3: "before"}},
        dynamo=False,
    )
    quantize_dynamic(folder / "float.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8)


def make_gguf(folder: Path, vocabulary: int) -> None:
    """Write random weights in the layout of GPT-2, and quantize them with llama.cpp."""
    import llama_cpp
    from gguf import GGUFWriter

    writer, random = GGUFWriter(folder / "float.gguf", "gpt2"), np.random.default_rng(0)
    writer.add_context_length(LENGTH)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(DEPTH)
    writer.add_feed_forward_length(4 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(0)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(vocabulary)
    norms = ["output_norm", *(f"blk.{i}.{name}_norm" for i in range(DEPTH) for name in ("attn", "ffn"))]
    shapes = {"token_embd": (vocabulary, WIDTH), "position_embd": (LENGTH, WIDTH), "output": (vocabulary, WIDTH)}
    layers = {"attn_qkv": (3, 1), "attn_output": (1, 1), "ffn_up": (4, 1), "ffn_down": (1, 4)}
    biases = dict.fromkeys(norms, WIDTH)
    for i in range(DEPTH):
        for name, (out, read) in layers.items():
            shapes[f"blk.{i}.{name}"] = (out * WIDTH, read * WIDTH)
            biases[f"blk.{i}.{name}"] = out * WIDTH
    for name in norms:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (random.standard_normal(shape) * 0.02).astype(np.float32))
    for name, count in biases.items():
        writer.add_tensor(f"{name}.bias", np.zeros(count, np.float32))
    for write in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{write}_to_file")()
    writer.close()
    for kind in GGUF_TYPES:
        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype, options.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}"), 1
        paths = (str(folder / name).encode() for name in ("float.gguf", f"{kind}.gguf"))
        if llama_cpp.llama_model_quantize(*paths, ctypes.byref(options)):
            raise SystemExit(f"llama.cpp cannot quantize to {kind}")


def packed_engine(path: Path, threads: int) -> Engine:
    decoder = Decoder(load_packed(path, threads=threads))

    def run(tokens: list[int], size: int) -> None:
        decoder.reset()
        for start in range(0, len(tokens), size):
            decoder.extend(tokens[start : start + size])

    return run


def llama_engine(path: Path, threads: int) -> Engine:
    import llama_cpp as llama

    llama.llama_log_set(QUIET, None)
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    sizes = llama.llama_context_default_params()
    sizes.n_ctx = sizes.n_batch = sizes.n_ubatch = LENGTH
    sizes.n_threads = sizes.n_threads_batch = threads
    context = llama.llama_init_from_model(model, sizes)
    memory = llama.llama_get_memory(context)

    def run(tokens: list[int], size: int) -> None:
        llama.llama_memory_clear(memory, True)
        for start in range(0, len(tokens), size):
            piece = (llama.llama_token * len(tokens[start : start + size]))(*tokens[start : start + size])
            if llama.llama_decode(context, llama.llama_batch_get_one(piece, len(piece))):
                raise SystemExit("llama.cpp failed")

    return run


def torch_engine(vocabulary: int, threads: int) -> Engine:
    torch.set_num_threads(threads)
    model = CachedGPT(build_model(vocabulary))

    @torch.inference_mode()
    def run(tokens: list[int], size: int) -> None:
        past = empty_past()
        for start in range(0, len(tokens), size):
            _, past = model(torch.tensor(tokens[start : start + size]), past)

    return run


def onnx_engine(path: Path, threads: int) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(tokens: list[int], size: int) -> None:
        past = empty_past().numpy()
        for start in range(0, len(tokens), size):
            given = np.array(tokens[start : start + size], np.int64)
            _, past = session.run(None, {"tokens": given, "past": past})

    return run


def engines(folder: Path, vocabulary: int, threads: int) -> dict[str, Engine]:
    found = {f"equalbits, W1A{bits}": packed_engine(folder / f"{name}.ebits", threads) for bits, name in
             ((8, "int8"), (32, "float32"))}  # fmt: skip
    found |= {f"llama.cpp, {kind}": llama_engine(folder / f"{kind}.gguf", threads) for kind in GGUF_TYPES}
    found["ONNX Runtime, int8"] = onnx_engine(folder / "int8.onnx", threads)
    found["torch, float32"] = torch_engine(vocabulary, threads)
    return found


def measure(found: dict[str, Engine], options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return seconds per token of every round, by task and engine."""
    tokens = np.random.default_rng(1).integers(options.vocabulary, size=max(options.decode, options.prefill)).tolist()
    tasks = {"decode": (options.decode, 1), "prefill": (options.prefill, options.prefill)}
    clock = time.process_time if options.threads == 1 else time.perf_counter
    taken: dict[str, dict[str, list[float]]] = {task: {name: [] for name in found} for task in tasks}
    for turn in range(options.rounds + 1):
        for task, (count, size) in tasks.items():
            for name, run in found.items():
                started = clock()
                run(tokens[:count], size)
                if turn:  # the first round warms up
                    taken[task][name].append((clock() - started) / count)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?", help="JSON file to write")
    parser.add_argument("--make", type=Path, metavar="DIR", help="write the files of all engines")
    parser.add_argument("--models", type=Path, metavar="DIR", help="the files that --make has written")
    for name, default in (("vocabulary", 4096), ("rounds", 7), ("threads", 1), ("decode", 64), ("prefill", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.vocabulary)
    if not options.models or not options.result:
        return
    taken = measure(engines(options.models, options.vocabulary, options.threads), options)
    shape = {"width": WIDTH, "depth": DEPTH, "heads": HEADS, "vocabulary": options.vocabulary}
    speeds = {
        task: {
            name: {
                "tokens_per_second": round(1 / statistics.median(rounds), 1),
                "rounds_ms": [round(1e3 * one, 4) for one in rounds],
            }
            for name, rounds in by_engine.items()
        }
        for task, by_engine in taken.items()
    }
    names = ("llama-cpp-python", "onnxruntime", "torch")
    report = {
        "shape": shape,
        **{name: getattr(options, name) for name in ("rounds", "threads", "decode", "prefill")},
        "cpu": next(
            (
                line.split(":")[1].strip()
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")
            ),
            platform.processor(),
        ),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in names},
        "speeds": speeds,
    }
    options.result.write_text(json.dumps(report, indent=1) + "\n")
    for task, by_engine in speeds.items():
        print(task, {name: found["tokens_per_second"] for name, found in by_engine.items()})


if __name__ == "__main__":
    main()
