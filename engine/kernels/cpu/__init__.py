"""Native CPU kernels (C++, built at first use) and the backend that runs a whole forward in them."""
