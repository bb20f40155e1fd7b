"""Measurements of binary networks in any training loop: exact shares of +1, sizes, flips and entropy."""

from equalbits.analysis.activations import ActivationBits as ActivationBits
from equalbits.analysis.activations import activation_bits as activation_bits
from equalbits.analysis.audit import AuditError as AuditError
from equalbits.analysis.audit import audit as audit
from equalbits.analysis.callbacks import BitMeter as BitMeter
from equalbits.analysis.callbacks import lightning_callback as lightning_callback
from equalbits.analysis.callbacks import trainer_callback as trainer_callback
from equalbits.analysis.layer_hooks import binary_layers as binary_layers
from equalbits.analysis.packed_sizes import LayerSummary as LayerSummary
from equalbits.analysis.summary import Summary as Summary
from equalbits.analysis.summary import summarize as summarize
from equalbits.analysis.watchers import EntropyWatcher as EntropyWatcher
from equalbits.analysis.watchers import FlipSeries as FlipSeries
from equalbits.analysis.watchers import FlipWatcher as FlipWatcher
from equalbits.runtime import Audit as Audit
from equalbits.runtime import LayerAudit as LayerAudit
