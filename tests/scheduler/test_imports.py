from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from engine.config import EngineConfig
from engine.executor.sim import CostModel
from engine.sampling_params import SamplingParams
from engine.sim import SimRequest, simulate

result = simulate(EngineConfig(), [SimRequest("a", [1, 2, 3], SamplingParams(max_tokens=2))], CostModel())
assert len(result.requests[0].token_ids) == 2
print(sorted({"torch", "numpy", "pyarrow", "transformers"} & sys.modules.keys()))
"""


def test_scheduler_core_and_simulator_bring_no_tensor_library():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
