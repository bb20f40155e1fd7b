"""Measurements of binary networks in any training loop: exact shares of +1, sizes, flips and entropy."""

from equalbits.analysis.activations import ActivationBits, activation_bits
from equalbits.analysis.audit import AuditError, audit
from equalbits.analysis.callbacks import BitMeter, lightning_callback, trainer_callback
from equalbits.analysis.entropy import EntropyWatcher
from equalbits.analysis.flips import FlipSeries, FlipWatcher
from equalbits.analysis.layer_hooks import binary_layers
from equalbits.analysis.summary import LayerSummary, Summary, summarize
from equalbits.runtime import Audit, LayerAudit

__all__ = [
    "ActivationBits",
    "Audit",
    "AuditError",
    "BitMeter",
    "EntropyWatcher",
    "FlipSeries",
    "FlipWatcher",
    "LayerAudit",
    "LayerSummary",
    "Summary",
    "activation_bits",
    "audit",
    "binary_layers",
    "lightning_callback",
    "summarize",
    "trainer_callback",
]
