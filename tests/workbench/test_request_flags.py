"""From flags to a spec: what vLLM's names mean here, and what is refused."""

from __future__ import annotations

import pytest

from engine.errors import InvalidInputError
from workbench.bench import BenchSpec
from workbench.commands import request as request_module
from workbench.commands.request import BenchFlags, make_spec
from workloads import WorkloadError


def spec_of(**flags) -> BenchSpec:
    return make_spec(BenchFlags(**flags))


def test_the_default_is_the_mixed_preset_on_the_builtin_engine():
    spec = spec_of(model="m", engine={"max_num_seqs": 4})
    assert spec.workload.name == "chat-and-documents"
    assert spec.engine == {"model": "m", "max_num_seqs": 4}
    assert spec.model is None
    assert spec.effective_slo == spec.workload.slo


def test_attached_model_is_a_name_in_the_api():
    spec = spec_of(base_url="http://h:1", model="m")
    assert (spec.model, spec.engine) == ("m", {})


def test_random_lengths_as_in_vllm():
    spec = spec_of(random_input_len=100, random_output_len=10, random_range_ratio=0.25, random_prefix_len=32)
    (only,) = spec.workload.classes
    assert (only.input_tokens.low, only.input_tokens.high) == (75 + 32, 125 + 32)
    assert (only.output_tokens.low, only.output_tokens.high) == (7, 13)
    assert only.prefix_tokens == 32
    plain = spec_of(dataset_name="random").workload.classes[0]
    assert (plain.input_tokens.value, plain.output_tokens.value) == (1024, 128)


@pytest.mark.parametrize(
    ("flags", "kind", "rate", "concurrency"),
    [
        ({}, "poisson", None, None),
        ({"request_rate": "3"}, "poisson", 3.0, None),
        ({"request_rate": "inf"}, "burst", None, None),
        ({"request_rate": "3", "burstiness": 0.5}, "gamma", 3.0, None),
        ({"max_concurrency": 4}, "closed", None, 4),
        ({"request_rate": "3", "max_concurrency": 4}, "poisson", 3.0, 4),
        ({"request_rate": "inf", "max_concurrency": 4}, "burst", None, 4),
        ({"dataset_name": "random", "request_rate": "3"}, "poisson", 3.0, None),
        ({"dataset_name": "random"}, "burst", None, None),
    ],
)
def test_arrivals(flags, kind, rate, concurrency):
    spec = spec_of(**flags)
    arrivals = spec.workload.arrivals
    assert (arrivals.kind, spec.rate, arrivals.max_concurrency) == (kind, rate, concurrency)


def test_objectives_may_be_repeated_or_together():
    assert spec_of(goodput=["ttft:200", "itl:50 e2el:9"]).slo == "ttft:200 itl:50 e2el:9"


def test_headers_and_bodies():
    spec = spec_of(header=["X-A=1=2"], extra_body='{"top_p": 0.5}')
    assert spec.headers == {"X-A": "1=2"}
    assert spec.extra_body == {"top_p": 0.5}


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"goodput": ["ttft:x"]}, "goodput"),
        ({"request_rate": "0"}, "request-rate"),
        ({"request_rate": "fast"}, "request-rate"),
        ({"request_rate": "nan"}, "request-rate"),
        ({"burstiness": 0.0, "request_rate": "1"}, "burstiness"),
        ({"burstiness": 1.0, "dataset_name": "random"}, "burstiness"),
        ({"max_concurrency": 0}, "max-concurrency"),
        ({"dataset_name": "sharegpt"}, "dataset-path"),
        ({"dataset_name": "nothing"}, "dataset-name"),
        ({"dataset_name": "random", "workload": "chat"}, "dataset-name"),
        ({"workload": "chat", "random_input_len": 4}, "random-input-len"),
        ({"random_input_len": 0}, "random-input-len"),
        ({"random_input_len": 4, "random_range_ratio": 1.0}, "random-range-ratio"),
        ({"random_input_len": 4, "random_prefix_len": -1}, "random-prefix-len"),
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"header": ["novalue"]}, "header"),
        ({"header": ["a=b\r\nc: d"]}, "header"),
        ({"extra_body": "{"}, "extra-body"),
        ({"extra_body": "[1]"}, "extra-body"),
        ({"num_prompts": 0}, "num-prompts"),
        ({"duration": -1.0}, "duration"),
        ({"seed": -1}, "seed"),
        ({"idle_timeout": 0.0}, "idle-timeout"),
        ({"request_id_prefix": "a b"}, "request-id-prefix"),
        ({"base_url": "http://h:1", "engine": {"max_num_seqs": 4}}, "base-url"),
        ({"dataset_name": "random", "traffic": {"num_turns": 3}}, "num-turns"),
        ({"traffic": {"num_turns": 3}, "random_input_len": 5}, "num-turns"),
    ],
)
def test_refusals_name_the_flag(flags, field):
    with pytest.raises(InvalidInputError) as caught:
        spec_of(**flags)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_unknown_workload():
    with pytest.raises(WorkloadError, match="chat-and-documents"):
        spec_of(workload="nope")


def test_keys_are_not_stored(monkeypatch):
    arguments = [
        "workbench",
        "bench",
        "--api-key",
        "sk-1",
        "--header=X=sk-2",
        "--header",
        "Y=sk-3",
        "--model",
        "m",
    ]
    monkeypatch.setattr(request_module.sys, "argv", arguments)
    spec = spec_of(api_key="sk-1")
    assert "sk-" not in " ".join(spec.command)
    assert spec.command[-2:] == ("--model", "m")
    assert "sk-1" not in repr(spec)
