"""Training: the loop, schedules by name, distillation, checkpoints.

Import from the modules: this package imports none of them, so that settings can be read without torch.
"""
