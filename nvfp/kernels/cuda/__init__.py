"""The CUDA launchers, each beside its source; headers in `include/`."""
