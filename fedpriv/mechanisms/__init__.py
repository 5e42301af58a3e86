"""DP variants (conf group dp_variant): clipping, noise, calibration, and the event each charges."""
