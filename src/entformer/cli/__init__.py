"""The command line: one module per command. Only this package prints and exits; importing it does not import torch."""
