"""Real data sets by name, as NumPy arrays; and features of raw data by an encoder. No JAX, no samplers.

`sets.py` says what each set is, `sources.py` where its files come from, `download.py` how they are fetched,
`archives.py` how they are read; `encoding.py` and `encoders.py` compute features.
"""

from isles.data.dataset import Dataset
from isles.data.download import DownloadError
from isles.data.encoding import encode
from isles.data.sets import NAMES, Catalogue, Listing, default_encoder, keep, load, names, raw

__all__ = [
    "NAMES",
    "Catalogue",
    "Dataset",
    "DownloadError",
    "Listing",
    "default_encoder",
    "encode",
    "keep",
    "load",
    "names",
    "raw",
]
