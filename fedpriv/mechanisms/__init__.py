"""DP variants (conf group dp_variant): clipping, noise, calibration to a budget, and the event each charges."""
