"""What a measurement cost: the nets that were trained for it, on which devices, and how long that took."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def trained(out: Path) -> dict[str, Any]:
    """Count the runs in an item's folder, those that earlier calls made too.

    ``seconds`` adds up what each net took; of nets trained side by side each has an equal share, so that the sum is a
    device's time. A net that diverged is counted, its time is not known.
    """
    runs = [_made(path) for path in sorted(out.rglob("run.json"))]
    watched = [json.loads(path.read_text()) for path in out.rglob("measured.json")]
    diverged = len(list(out.rglob("diverged.json"))) + sum("diverged" in measured for measured in watched)
    return {
        "nets": len(runs) + diverged,
        "diverged": diverged,
        "seconds": round(sum(run["seconds"] for run in runs), 2),
        "side_by_side": max((run["side_by_side"] for run in runs), default=0),
        **{name: sorted({run[name] for run in runs}) for name in ("data", "devices", "versions")},
    }


def _made(path: Path) -> dict[str, Any]:
    """What one net took, by its run.json."""
    try:
        run = json.loads(path.read_text())
        return {
            "seconds": float(run["seconds"]),
            "side_by_side": int(run.get("stacked_with", 1)),
            "data": str(run["recipe"]["data"]["name"]),
            "devices": str(run["device"]),
            "versions": " · ".join(f"{name} {version}" for name, version in run["versions"].items()),
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"{path} does not say what the net took ({type(error).__name__}: {error})"
        raise ValueError(f"{what}: delete {path.parent} to measure it again") from None


def cost(kept: Mapping[str, Any]) -> str:
    """How many nets a measurement trained, how long that took, and on what."""
    nets = kept["trained"]
    if not nets["nets"]:
        return f"{duration(kept['seconds'])} on {kept['device']}"
    devices = nets["devices"] or [kept["device"]]  # runs that diverged have not said theirs
    device = f"one {devices[0]}" if len(devices) == 1 else " and ".join(devices)
    # The command's own time, unless it went on with what others had begun, or spread it over a cluster.
    by_one = kept["seconds"] >= nets["seconds"]
    time = f"{duration(kept['seconds'])} of" if by_one else f"{duration(nets['seconds'])} of training on"
    words = f"{nets['nets']} net{'s' if nets['nets'] > 1 else ''} in {time} {device}"
    words += f", up to {nets['side_by_side']} side by side" if nets["side_by_side"] > 1 else ""
    return words + (f", {nets['diverged']} of which diverged" if nets["diverged"] else "")


def made_with(kept: Mapping[str, Any]) -> str:
    """The versions that trained the nets, also where another draws them."""
    here = " · ".join(f"{name} {version}" for name, version in kept["versions"].items())
    return " and ".join(kept["trained"]["versions"]) or here


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(1023.4), duration(8.25), duration(59.97), duration(7322)
    ('17 m 03 s', '8.2 s', '1 m 00 s', '2 h 02 m 02 s')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} m {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} m {rest:02} s"
