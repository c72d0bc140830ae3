"""The paper's evaluation in the twin: ``blink reproduce``. Begin at :mod:`reproduce`."""
