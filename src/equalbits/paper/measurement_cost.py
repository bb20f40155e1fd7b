"""The cost of a measurement: the nets trained for it, the devices, and the time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equalbits.recipes import RunRecord


def count_trained(out: Path) -> dict[str, Any]:
    """Count the runs in an item's directory, including those of earlier calls.

    ``seconds`` is device time: nets trained at once take an equal share each. The time of a diverged net is not known.
    """
    records = [RunRecord.read(path) for path in sorted(out.rglob("run.json"))]
    return {
        "nets": len(records),
        "diverged": sum(record.diverged for record in records),
        "seconds": round(sum(record.seconds for record in records), 2),
        "side_by_side": max((record.stacked_with for record in records if not record.diverged), default=0),
        "data": sorted({record.recipe.data.name for record in records}),
        "devices": sorted({record.device for record in records}),
        "versions": sorted({record.software for record in records}),
    }


def cost(kept: Mapping[str, Any]) -> str:
    """Describe how many nets a measurement trained, how long that took, and on which device."""
    nets = kept["trained"]
    if not nets["nets"]:
        return f"{duration(kept['seconds'])} on {kept['device']}"
    devices = nets["devices"] or [kept["device"]]
    device = f"one {devices[0]}" if len(devices) == 1 else " and ".join(devices)
    # The time of the command, unless earlier calls trained some of the nets, or a cluster did.
    by_one = kept["seconds"] >= nets["seconds"]
    time = f"{duration(kept['seconds'])} of" if by_one else f"{duration(nets['seconds'])} of training on"
    words = f"{nets['nets']} net{'s' if nets['nets'] > 1 else ''} in {time} {device}"
    words += f", up to {nets['side_by_side']} side by side" if nets["side_by_side"] > 1 else ""
    return words + (f", {nets['diverged']} of which diverged" if nets["diverged"] else "")


def made_with(kept: Mapping[str, Any]) -> str:
    """Name the versions that trained the nets; without nets, those that measured."""
    here = " · ".join(f"{name} {version}" for name, version in kept["versions"].items())
    return " and ".join(kept["trained"]["versions"]) or here


def duration(seconds: float) -> str:
    """Format a time in hours, minutes and seconds.

    >>> duration(1023.4), duration(8.25), duration(59.97), duration(7322)
    ('17 m 03 s', '8.2 s', '1 m 00 s', '2 h 02 m 02 s')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} m {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} m {rest:02} s"
