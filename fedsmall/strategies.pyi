# For type checkers: what `from fedsmall.strategies import ...` gives (fedsmall/imports finds it).
from fedsmall.strategies import SCAFFOLD as SCAFFOLD
from fedsmall.strategies import Averaging as Averaging
from fedsmall.strategies import DaisyChain as DaisyChain
from fedsmall.strategies import FedDC as FedDC
from fedsmall.strategies import FedDyn as FedDyn
from fedsmall.strategies import FedNova as FedNova
from fedsmall.strategies import RadonMachine as RadonMachine
from fedsmall.strategies import RepTreeFL as RepTreeFL
from fedsmall.strategies import Tree as Tree
