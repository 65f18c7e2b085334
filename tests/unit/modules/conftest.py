"""What the tests of several modules share."""

from __future__ import annotations

import torch

# Tiny models on several threads spend their time waiting for each other, all the more beside other processes.
torch.set_num_threads(1)
