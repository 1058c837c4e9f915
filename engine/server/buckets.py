"""Histogram edges. vLLM's are all here, so its boards work; finer ones are added where a small model on a
CPU lives.
"""

from __future__ import annotations

TTFT_S = (
    *(
        0.001,
        0.0025,
        0.005,
        0.0075,
        0.01,
        0.015,
        0.02,
        0.03,
        0.04,
        0.06,
        0.08,
        0.1,
        0.15,
        0.2,
        0.25,
        0.5,
        0.75,
    ),
    *(1.0, 1.5, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_LATENCY_S = (
    *(
        0.0005,
        0.001,
        0.002,
        0.003,
        0.004,
        0.005,
        0.006,
        0.008,
        0.01,
        0.0125,
        0.015,
        0.02,
        0.025,
        0.03,
        0.04,
        0.05,
    ),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
"""Inter-token latency and time per output token: vLLM's floor of 10 ms is above a small model's median."""
REQUEST_S = (
    *(
        0.005,
        0.01,
        0.025,
        0.05,
        0.1,
        0.2,
        0.3,
        0.5,
        0.8,
        1.0,
        1.5,
        2.0,
        2.5,
        5.0,
        10.0,
        15.0,
        20.0,
        30.0,
        40.0,
    ),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
KV_BLOCK_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1200.0, 1800.0),
)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SEQUENCES = (1, 2, 5, 10, 20)


def tokens(largest: int) -> tuple[int, ...]:
    """The 1-2-5 series up to and including the first edge at or above ``largest``."""
    edges: list[int] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            edges.append(step * scale)
            if edges[-1] >= largest:
                return tuple(edges)
        scale *= 10
