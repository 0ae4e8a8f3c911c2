"""Two ways of choosing the layers to prune, iteration by iteration (the paper's Fig. 5)."""
