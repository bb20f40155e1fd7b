"""Training: loop, optimizer, schedule, precision, processes and checkpoints, for any model and any batches."""

from equalbits.training.checkpoint_file import (
    BEST,
    LAST,
    WEIGHTS,
    CheckpointError,
    checkpoint_bytes,
    load_checkpoint,
    load_weights,
    read_metadata,
    save_checkpoint,
)
from equalbits.training.config import DistillConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from equalbits.training.distributed import PeerLostError, ProcessRank, process_group, rank_from_env, wait_for_all
from equalbits.training.divergence import NonFiniteError, check_weights
from equalbits.training.evaluation import Score, device_of, evaluate
from equalbits.training.history import EpochRecord, History, Reporter, StepRecord
from equalbits.training.loop import Watcher, train
from equalbits.training.optimizer import make_optimizer
from equalbits.training.progress import ProgressBar
from equalbits.training.reporters import JsonLines, TensorBoard, WeightsAndBiases
from equalbits.training.resume_checks import Resume, device_name, refuse_changes
from equalbits.training.save_and_resume import FREE_SETTINGS, prefixed, with_prefix
from equalbits.training.schedule import Position, learning_rate
from equalbits.training.stack import StackError, shared, train_stack
from equalbits.training.stop_signals import InterruptedTraining, stop_requests

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
    "OptimizerConfig",
    "PeerLostError",
    "Position",
    "ProcessRank",
    "ProgressBar",
    "Reporter",
    "Resume",
    "ScheduleConfig",
    "Score",
    "StackError",
    "StepRecord",
    "TensorBoard",
    "TrainConfig",
    "Watcher",
    "WeightsAndBiases",
    "check_weights",
    "checkpoint_bytes",
    "device_name",
    "device_of",
    "evaluate",
    "learning_rate",
    "load_checkpoint",
    "load_weights",
    "make_optimizer",
    "prefixed",
    "process_group",
    "rank_from_env",
    "read_metadata",
    "refuse_changes",
    "save_checkpoint",
    "shared",
    "stop_requests",
    "train",
    "train_stack",
    "wait_for_all",
    "with_prefix",
]
