"""What the twin believes: scenarios, workloads, hardware, models, timing, policy, records.

Pure data and arithmetic; no clock, no randomness of its own, no backend library.
"""
