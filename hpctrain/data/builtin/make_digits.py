"""Makes digits.h5 from scikit-learn's copy of the UCI handwritten digits.

    pip install scikit-learn
    python -m hpctrain.data.builtin.make_digits [OUTPUT]

hpctrain itself does not need scikit-learn: the file is shipped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import h5py
import numpy as np

ATTRIBUTES = {
    "title": "Handwritten digits, 1797 images of 8x8 pixels with 16 grey levels",
    "source": "UCI Machine Learning Repository: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits "
    "(1998), test part, https://doi.org/10.24432/C50P49; by way of scikit-learn's load_digits",
    "licence": "CC BY 4.0, https://creativecommons.org/licenses/by/4.0/",
    "changes": "pixel values divided by 16, stored as HDF5",
}


def write(path: Path) -> None:
    """Write images (1797, 8, 8) float32 in [0, 1] and labels (1797,) uint8 to a file; the same bytes each time."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    temporary = path.with_name(path.name + ".part")
    with h5py.File(temporary, "w") as file:
        file.attrs.update(ATTRIBUTES)
        options = {"compression": "gzip", "compression_opts": 9, "shuffle": True, "track_times": False}
        # Sixteenths are exact in float32.
        file.create_dataset("images", data=(digits.images / 16).astype(np.float32), chunks=(600, 8, 8), **options)
        file.create_dataset("labels", data=digits.target.astype(np.uint8), chunks=(1797,), **options)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("digits.h5"))
