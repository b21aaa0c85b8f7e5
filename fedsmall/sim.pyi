# For type checkers: what `from fedsmall.sim import ...` gives (fedsmall/imports finds it).
from fedsmall.sim.api import Result as Result
from fedsmall.sim.api import run as run
