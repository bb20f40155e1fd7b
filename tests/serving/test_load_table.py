"""The load test's table is that of its stored results, and no request failed."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_is_of_the_stored_results_without_errors() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    record = json.loads((ROOT / "results" / "serve-load.json").read_text())
    assert record["exit"] == 0
    for row in record["rows"]:
        assert row["errors"] == 0
        rates = (row[f"{name}_per_second"] for name in ("requests", "images", "engine_images"))
        numbers = " | ".join(f"{rate:,.0f}" for rate in rates)
        line = f"| {row['body']} | {row['connections']} | {row['requests']:,} | 0 | {numbers} | {row['p50_ms']} |"
        assert line in page
