"""The native engine is numpy's twin: the same bits on every instruction set, for every network, batch and thread."""


import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equalbits.runtime import native
from equalbits.runtime.engine import NativeEngine, run_numpy

if native.BUILT is None:
    pytest.skip(native.REASON, allow_module_level=True)

SETS = native.BUILT.instruction_sets()


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_native_and_numpy_agree_to_the_last_bit_on_any_network(
    networks: st.SearchStrategy, data: st.DataObject
) -> None:
    network, images = data.draw(networks)
    truth = run_numpy(network, images)
    for name in SETS:
        np.testing.assert_array_equal(NativeEngine(network, name)(images), truth, err_msg=name)
    threads = data.draw(st.integers(2, 4))
    np.testing.assert_array_equal(NativeEngine(network)(images, threads), truth)
