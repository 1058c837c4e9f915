"""Native kernels, one folder per kind of device."""
