"""The SimPy backend: a discrete-event twin of GPU, link, DPU, host and clients."""
