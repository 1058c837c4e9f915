"""Executors without a model, as ``module:function`` factories for a core in any process.

The *echo* model says the prompt again, over and over, so a test writes its output into the prompt.
"""

from __future__ import annotations

import os
import time
from typing import Any

from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.core.client import InprocCoreClient
from engine.errors import InvalidInputError, ModelLoadError
from engine.executor.info import ExecutorInfo
from engine.executor.sim import SimExecutor, TokenModel
from engine.frontend.llm import LLM
from engine.plan import StepPlan, StepResult
from tests.frontend.byte_tokenizer import EOS, VOCAB_SIZE, ByteTokenizer

HERE = __name__
MAX_MODEL_LEN = 200


class EchoTokens(TokenModel):
    """Position p of the sequence holds what position p − len(prompt) holds."""

    def key(self, prompt_token_ids: list[int], seed: int | None) -> Any:
        return tuple(prompt_token_ids)

    def token(self, key: Any, position: int) -> int:
        return key[position % len(key)]


class Paced(SimExecutor):
    """Takes real time: ``pace_s`` a step."""

    pace_s = 0.005

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(self.pace_s)
        return super().execute(plan)


class Crashing(Paced):
    """Fails in the step that would compute a token 0 of a prompt."""

    def execute(self, plan: StepPlan) -> StepResult:
        if any(0 in new.token_ids for new in plan.new_requests):
            raise RuntimeError("out of luck\nand more")
        return super().execute(plan)


class Exiting(Paced):
    """As :class:`Crashing`, but the whole process is gone without a word."""

    def execute(self, plan: StepPlan) -> StepResult:
        if any(0 in new.token_ids for new in plan.new_requests):
            os._exit(7)
        return super().execute(plan)


def info_for(config: EngineConfig) -> ExecutorInfo:
    return ExecutorInfo(
        model="echo",
        architecture="Echo",
        dtype="float32",
        attention_backend="none",
        attention_backend_reason=None,
        quantization="none",
        num_threads=1,
        max_model_len=config.max_model_len or MAX_MODEL_LEN,
        block_size=config.block_size,
        num_kv_blocks=config.num_gpu_blocks_override or 65,
        kv_cache_bytes=0,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=[EOS],
        load_seconds=0.0,
        model_config={},
    )


def _make(kind: type[SimExecutor], config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    info = info_for(config)
    return kind(info.num_kv_blocks, MonotonicClock(), token_model=EchoTokens()), info


def echo(config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    return _make(SimExecutor, config)


def paced(config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    return _make(Paced, config)


def crashing(config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    return _make(Crashing, config)


def exiting(config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    return _make(Exiting, config)


def unloadable(config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    raise ModelLoadError("model='echo': damaged\nsecond line")


def misconfigured(config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    raise InvalidInputError("quantization", "int9", "none or int8")


def broken(config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    raise RuntimeError("no idea what happened")


def vanishing(config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    os._exit(9)


def slow_to_load(config: EngineConfig) -> tuple[SimExecutor, ExecutorInfo]:
    time.sleep(60)
    return echo(config)


def make_llm(factory: str = "echo", **fields: Any) -> LLM:
    config = EngineConfig.create(**fields)
    return LLM.from_parts(config, InprocCoreClient(config, f"{HERE}:{factory}"), ByteTokenizer())
