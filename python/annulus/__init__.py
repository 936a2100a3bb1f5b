"""Train a PyTorch model on all the machines you have, together.

```python
import annulus

run = annulus.train(model, dataset, loss="cross_entropy", rounds=2000, listen=4433)   # prints a ticket
run.load_into(model)                                                                  # waits for the end
```

On any other machine, without torch and without the samples:

```python
annulus.join("annulus2...")
```

| name | purpose |
|---|---|
| `train` | exports a model, checks its gradient, and starts a run |
| `join` | computes for a run |
| `resume` | goes on with a run from its folder |
| `member` | takes part with PyTorch's own gradients, on the device that the model is on |
| `export` | writes a model and its samples as a folder that `annulus train --task graph` trains |
| `check` | compares the gradient on this machine's devices with PyTorch's |
| `Run` | a peer: its ticket, its progress, its end, the trained model |
| `fit`, `load` | trains a model of a table; opens one that was saved. Both give a `Predictor` |
| `AnnulusClassifier`, `AnnulusRegressor` | the same by scikit-learn's interface: `fit(X, y)`, `predict`, `score` |
| `hf.AnnulusTrainer` | a Hugging Face `Trainer` that takes part in a run |
| `lightning.AnnulusStrategy` | a strategy by which a Lightning `Trainer` takes part in a run |

`join` and `resume` need the standard library only, `fit` and `load` pandas for data frames, the two classes of scikit-learn's
interface NumPy and pandas, `check` NumPy and safetensors, `export`, `member` and `train` torch too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import AnnulusError, CheckError, ExportError, ProgramError
from .run import Run, join, resume
from .tables import Predictor, fit, load
from .version import VERSION as __version__

if TYPE_CHECKING:
    from .checking import Measurement, check
    from .exporter import export
    from .membership import Member, member
    from .sklearn import AnnulusClassifier, AnnulusRegressor
    from .training import train

__all__ = [
    "AnnulusClassifier",
    "AnnulusError",
    "AnnulusRegressor",
    "CheckError",
    "ExportError",
    "Measurement",
    "Member",
    "Predictor",
    "ProgramError",
    "Run",
    "__version__",
    "check",
    "export",
    "fit",
    "join",
    "load",
    "member",
    "resume",
    "train",
]

#: Where the names are that need other libraries, and which of these.
_LATER = {
    "AnnulusClassifier": ("sklearn", ("numpy", "pandas")),
    "AnnulusRegressor": ("sklearn", ("numpy", "pandas")),
    "Measurement": ("checking", ("numpy", "safetensors")),
    "Member": ("membership", ("torch", "safetensors")),
    "check": ("checking", ("numpy", "safetensors")),
    "export": ("exporter", ("torch", "safetensors")),
    "member": ("membership", ("torch", "safetensors")),
    "train": ("training", ("torch", "safetensors")),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LATER[name][0]}", __name__), name)


def __dir__() -> list[str]:
    """All names whose libraries are installed, so that tab completion and `help` show what can be called."""
    from importlib.util import find_spec

    later = [name for name, (_, needed) in _LATER.items() if all(find_spec(library) for library in needed)]
    return sorted({*globals(), *later} - {"TYPE_CHECKING", "Any", "annotations"})
