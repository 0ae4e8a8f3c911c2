"""Which metric picks the channels that can be removed (the paper's Figs. 2 and 4)."""
