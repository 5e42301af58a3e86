"""How alike two images are: PSNR, and SSIM with its authors' Gaussian window (Wang et al. 2004)."""

import numpy as np
from scipy.ndimage import gaussian_filter


def psnr(image: np.ndarray, other: np.ndarray, span: float) -> float:
    """Decibels; `span` is the width of the images' range."""
    error = float(np.mean((image - other) ** 2))
    return float("inf") if error == 0 else 10 * np.log10(span**2 / error)


def ssim(image: np.ndarray, other: np.ndarray, span: float) -> float:
    """Structural similarity of [c, h, w] images, mean over pixels and channels; 1 for equal ones."""
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2

    def blurred(x: np.ndarray) -> np.ndarray:
        smooth: np.ndarray = gaussian_filter(x, (0, 1.5, 1.5), truncate=3.5)
        return smooth

    a, b = image.astype(np.float64), other.astype(np.float64)
    mean_a, mean_b = blurred(a), blurred(b)
    var_a, var_b = blurred(a * a) - mean_a**2, blurred(b * b) - mean_b**2
    both = blurred(a * b) - mean_a * mean_b
    top = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    return float((top / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).mean())
