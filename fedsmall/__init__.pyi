"""What an editor completes, and a type checker knows, of names that are imported when they are first asked for."""

from pathlib import Path
from typing import Any

from fedsmall.package.predictor import load as load
from fedsmall.sim.api import Result as Result
from fedsmall.sim.api import run as run
from fedsmall.sim.estimators import FederatedClassifier as FederatedClassifier
from fedsmall.sim.estimators import FederatedRegressor as FederatedRegressor
from fedsmall.sim.estimators import FederatedSurvival as FederatedSurvival

__version__: str
HOME: Path
BESIDE: Path

def project_in(beside: Path = ...) -> dict[str, Any]: ...
