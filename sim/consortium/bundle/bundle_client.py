"""The ClientApp that a Flower app must have. A real site runs none: its own program answers."""

from flwr.clientapp import ClientApp

app = ClientApp()
