"""The speeds of WebAssembly on the page of deployment are those of the stored results."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINES = (
    "wasm, node",
    "wasm, Chromium",
    "native, avx2",
    "native, avx512",
    "onnxruntime-web, fp32",
    "onnxruntime-web, int8",
)


def test_the_table_and_its_ratios_are_of_the_stored_results() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "results" / "wasm-inference.json").read_text())["rows"]
    assert all(row["same_class"] for row in rows)
    times = {
        (row["network"], row["engine"]): row["fastest_ms" if "Chromium" in row["engine"] else "ms"] for row in rows
    }
    networks = sorted({network for network, _ in times}, reverse=True)
    for network in networks:
        assert f"| {network} | {' | '.join(f'{times[network, engine]:.2f}' for engine in ENGINES)} |" in page
    shares = [
        [f"{times[network, engine] / times[network, 'wasm, node']:.2f}" for network in networks]
        for engine in ("native, avx2", "native, avx512")
    ]
    text = re.sub(r"\s+", " ", page)
    assert "It reaches {} and {} of the speed of native AVX2".format(*shares[0]) in text
    assert "and {} and {} of AVX-512".format(*shares[1]) in text
    gains = [
        f"{times[network, f'onnxruntime-web, {kind}'] / times[network, 'wasm, node']:.1f} times"
        for network in networks[::-1]
        for kind in ("fp32", "int8")
    ]
    assert "it is {} as fast in float32 ({} in int8)".format(*gains[:2]) in text
    assert "and {} ({}) where binary weights meet real inputs".format(*gains[2:]) in text
