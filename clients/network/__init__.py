"""What of a site speaks to the network: the resident and its line to the server."""
