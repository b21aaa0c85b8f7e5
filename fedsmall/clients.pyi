# For type checkers: what `from fedsmall.clients import ...` gives (fedsmall/imports finds it).
from fedsmall.clients.client_app import app as app
from fedsmall.clients.hospital import HospitalClient as HospitalClient
