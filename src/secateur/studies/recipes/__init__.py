"""The paper's experiments as recipe files, and the results that the paper printed."""
