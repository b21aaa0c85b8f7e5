"""Real sites: members, keys, the server, the sites' programs, runs over them."""
