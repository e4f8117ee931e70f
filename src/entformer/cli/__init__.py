"""The command line: one thin file per command. Only this room prints and exits; importing it does not import torch."""
