from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FIELDS: dict[str, int]
KINDS: dict[str, int]
SOURCES: str

def instruction_sets() -> list[str]: ...

class Plan:
    def __init__(
        self,
        values: NDArray[np.int64],
        steps: NDArray[np.int64],
        tensors: Sequence[NDArray[np.uint8]],
        answer: int,
        instruction_set: str,
        max_bytes: int = ...,
    ) -> None: ...
    def run(self, images: NDArray[np.float32], answers: NDArray[np.float32], threads: int) -> None: ...
    def run_bytes(
        self, images: NDArray[np.uint8], table: NDArray[np.float32], answers: NDArray[np.float32], threads: int
    ) -> None: ...
    def run_at(
        self,
        image: NDArray[np.float32],
        answers: NDArray[np.float32],
        state: NDArray[np.float32],
        position: int,
        threads: int,
    ) -> None: ...
    def state_size(self) -> int: ...
    def time(self, image: NDArray[np.float32]) -> list[float]: ...
