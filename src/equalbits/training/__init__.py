"""Training: optimizer, schedule, precision, processes, checkpoints. It is handed its model and its batches."""

from equalbits.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from equalbits.training.config import DistillConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from equalbits.training.distributed import PeerLostError
from equalbits.training.history import (
    EpochRecord,
    History,
    JsonLines,
    Reporter,
    StepRecord,
    TensorBoard,
    WeightsAndBiases,
)
from equalbits.training.interruption import InterruptedTraining, NonFiniteError
from equalbits.training.loop import train
from equalbits.training.schedule import Position, learning_rate
from equalbits.training.score import Score, evaluate
from equalbits.training.stack import StackError, train_stack

__all__ = [
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
    "Reporter",
    "ScheduleConfig",
    "Score",
    "StackError",
    "StepRecord",
    "TensorBoard",
    "TrainConfig",
    "WeightsAndBiases",
    "evaluate",
    "learning_rate",
    "load_checkpoint",
    "save_checkpoint",
    "train",
    "train_stack",
]
