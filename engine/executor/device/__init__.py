"""Running on an accelerator: staging, graphs, sampling without a wait. CUDA, or a fake of it on the CPU."""
