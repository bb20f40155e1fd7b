"""Training: optimizer, schedule, precision, processes, checkpoints. It is handed its model and its batches."""

from equalbits.training.checkpoint import (
    BEST,
    LAST,
    WEIGHTS,
    CheckpointError,
    checkpoint_bytes,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from equalbits.training.config import DistillConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from equalbits.training.distributed import PeerLostError, Place, announced_place, process_group
from equalbits.training.history import (
    EpochRecord,
    History,
    JsonLines,
    Reporter,
    StepRecord,
    TensorBoard,
    WeightsAndBiases,
)
from equalbits.training.loop import Watcher, train
from equalbits.training.resume import FREE_SETTINGS, flat, prefixed, with_prefix
from equalbits.training.schedule import Position, learning_rate
from equalbits.training.score import Score, device_of, evaluate
from equalbits.training.setting_rules import OneOf, Within, check_settings, rules_of
from equalbits.training.stack import StackError, shared, train_stack
from equalbits.training.step import make_optimizer
from equalbits.training.stop_signals import InterruptedTraining, NonFiniteError, check_weights, stop_requests

__all__ = [
    "BEST",
    "FREE_SETTINGS",
    "LAST",
    "WEIGHTS",
    "CheckpointError",
    "DistillConfig",
    "EpochRecord",
    "History",
    "InterruptedTraining",
    "JsonLines",
    "NonFiniteError",
    "OneOf",
    "OptimizerConfig",
    "PeerLostError",
    "Place",
    "Position",
    "Reporter",
    "ScheduleConfig",
    "Score",
    "StackError",
    "StepRecord",
    "TensorBoard",
    "TrainConfig",
    "Watcher",
    "WeightsAndBiases",
    "Within",
    "announced_place",
    "check_settings",
    "check_weights",
    "checkpoint_bytes",
    "device_of",
    "evaluate",
    "flat",
    "learning_rate",
    "load_checkpoint",
    "load_weights",
    "make_optimizer",
    "prefixed",
    "process_group",
    "rules_of",
    "save_checkpoint",
    "shared",
    "stop_requests",
    "train",
    "train_stack",
    "with_prefix",
]
