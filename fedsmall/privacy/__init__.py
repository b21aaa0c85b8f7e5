"""What travels must not give a patient away: noise, ledgers, and the attacks that they are tried against."""
