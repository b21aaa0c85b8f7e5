"""The coordinator's page: what a consortium's folder says of its runs, for one reader on this machine."""
