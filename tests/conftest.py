"""Chosen first of all: whether Triton kernels run in the interpreter."""

from tests.helpers.triton_mode import choose_triton_mode

choose_triton_mode()
