"""The twin's processes, one family a file: client, link, DPU, GPU, host."""
