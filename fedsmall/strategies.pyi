# For type checkers: what `from fedsmall.strategies import ...` gives (fedsmall/imports finds it).
from strategies import SCAFFOLD as SCAFFOLD
from strategies import Averaging as Averaging
from strategies import DaisyChain as DaisyChain
from strategies import FedDC as FedDC
from strategies import FedDyn as FedDyn
from strategies import FedNova as FedNova
from strategies import RadonMachine as RadonMachine
from strategies import RepTreeFL as RepTreeFL
from strategies import Tree as Tree
