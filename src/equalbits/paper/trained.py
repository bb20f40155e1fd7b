"""What a measurement cost: the nets that were trained for it, on which devices, and how long that took."""

import json
from pathlib import Path
from typing import Any


def trained(out: Path) -> dict[str, Any]:
    """Count the runs in an item's folder, those that earlier calls made too.

    ``seconds`` adds up what each net took; of nets trained side by side each has an equal share, so that the sum is a
    device's time. A net that diverged is counted, its time is not known.
    """
    runs = [json.loads(path.read_text()) for path in sorted(out.rglob("run.json"))]
    watched = [json.loads(path.read_text()) for path in out.rglob("measured.json")]
    diverged = len(list(out.rglob("diverged.json"))) + sum("diverged" in measured for measured in watched)
    return {
        "nets": len(runs) + diverged,
        "diverged": diverged,
        "seconds": round(sum(run["seconds"] for run in runs), 2),
        "side_by_side": max((run.get("stacked_with", 1) for run in runs), default=0),
        "data": sorted({run["recipe"]["data"]["name"] for run in runs}),
        "devices": sorted({run["device"] for run in runs}),
        "versions": sorted(
            {" · ".join(f"{name} {version}" for name, version in run["versions"].items()) for run in runs}
        ),
    }
