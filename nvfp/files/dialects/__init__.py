"""One file per dialect of quantized safetensors: a table of rows, and how its configuration is written."""
